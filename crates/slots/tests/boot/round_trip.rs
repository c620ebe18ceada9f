//! What is written is read; what is right already is not written; other people's variables stay.

use slipway_slots::Slot;
use slipway_slots::boot::{Codec as _, Contents, Grubenv, UbootEnv};

use super::disk::{apply, blank, holding};
use super::{codecs, states};

#[test]
fn every_state_comes_back_as_it_was_written_in_every_store() {
    for codec in codecs() {
        for before in states(&*codec) {
            for after in states(&*codec) {
                let mut contents = holding(&*codec, &before);
                for step in codec.encode(&contents, &after).expect("there is room") {
                    apply(&mut contents, &*codec, &step);
                }
                let decoded = codec.decode(&contents);
                assert_eq!(decoded.state, Some(after), "{} from {before}", codec.name());
                assert_eq!(decoded.problems, Vec::<String>::new(), "{}", codec.name());
                assert_eq!(
                    codec.encode(&contents, &after).expect("there is room"),
                    [],
                    "{} writes what it holds already",
                    codec.name()
                );
            }
        }
    }
}

#[test]
fn a_store_that_was_never_written_is_not_believed() {
    for codec in codecs() {
        let decoded = codec.decode(&blank(&*codec));
        // A fresh partition table is intact and says that nothing may boot.
        if codec.name() == "gpt" {
            let state = decoded.state.expect("the table is intact");
            assert_eq!(state.next_boot(), None);
        } else {
            assert_eq!(decoded.state, None, "{}", codec.name());
            assert!(!decoded.problems.is_empty(), "{}", codec.name());
        }
    }
}

/// E-36: RAUC's names, and nobody else's variables are lost.
#[test]
fn e36_grubenv_with_raucs_variables_is_understood_and_foreign_ones_stay() {
    let text =
        "# GRUB Environment Block\nORDER=B A\nA_OK=1\nA_TRY=0\nB_OK=1\nB_TRY=0\nsaved_entry=debian\\\\x\n";
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(1024, b'#');
    let mut contents = Contents::Files([("grubenv".to_owned(), bytes)].into());
    let state = Grubenv
        .decode(&contents)
        .state
        .expect("RAUC's state is understood");
    assert_eq!(state.next_boot(), Some(Slot::B));
    for step in Grubenv.encode(&contents, &state).expect("there is room") {
        apply(&mut contents, &Grubenv, &step);
    }
    let Contents::Files(files) = &contents else {
        panic!("grubenv is a file")
    };
    let text = String::from_utf8_lossy(&files["grubenv"]);
    assert!(text.contains("\nsaved_entry=debian\\\\x\n"), "{text}");
    assert!(text.contains("\nORDER=B A\n"), "{text}");
}

/// GRUB rewrites its block in place, sector by sector: everything of ours is in the first one.
#[test]
fn what_grub_changes_is_in_the_first_sector_of_grubenv() {
    for state in states(&Grubenv) {
        let Contents::Files(files) = holding(&Grubenv, &state) else {
            panic!("grubenv is a file")
        };
        let ends = files["grubenv"].iter().rposition(|byte| *byte != b'#');
        assert!(ends.is_some_and(|ends| ends < 512), "{state}");
    }
}

#[test]
fn ubootenv_counts_its_flags_around_the_end() {
    let codec = UbootEnv {
        offsets: [0, 4096],
        size: 4096,
    };
    let states = states(&codec);
    let mut contents = holding(&codec, &states[0]);
    // Each change raises the flags by two: three hundred changes go around more than twice.
    for count in 0..300 {
        let state = states[1 + count % (states.len() - 1)];
        for step in codec.encode(&contents, &state).expect("there is room") {
            apply(&mut contents, &codec, &step);
        }
        let decoded = codec.decode(&contents);
        assert_eq!(decoded.state, Some(state), "change {count}");
        assert_eq!(decoded.problems, Vec::<String>::new(), "change {count}");
    }
}
