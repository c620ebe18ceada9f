//! Looks at an ELF program: for which machine it is, and whether it needs anything at run time that an empty image lacks.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    X86_64,
    Aarch64,
}

const INTERPRETER: u32 = 3;
const DYNAMIC: u32 = 2;
const NEEDED: u64 = 1;

/// Fails unless the program is for `machine`, asks for no interpreter and for no shared library. A position-independent
/// static program keeps a dynamic section for its own relocation; that needs nobody.
pub fn check_static(program: &[u8], machine: Machine) -> Result<(), String> {
    let cut = || "it ends too early to be a program".to_owned();
    let bytes = |offset: usize, length: usize| program.get(offset..offset.checked_add(length)?);
    let number = |offset: usize, length: usize| -> Result<u64, String> {
        let bytes = bytes(offset, length).ok_or_else(cut)?;
        Ok(bytes
            .iter()
            .rev()
            .fold(0, |number, byte| (number << 8) | u64::from(*byte)))
    };
    if bytes(0, 6) != Some(b"\x7fELF\x02\x01") {
        return Err("it is not a 64-bit little-endian ELF program".to_owned());
    }
    let found = number(18, 2)?;
    let desired = match machine {
        Machine::X86_64 => 62,
        Machine::Aarch64 => 183,
    };
    if found != desired {
        return Err(format!("it is for machine {found}, not for {machine:?}"));
    }
    let (offset, size, count) = (number(32, 8)? as usize, number(54, 2)? as usize, number(56, 2)?);
    for index in 0..count as usize {
        let header = index
            .checked_mul(size)
            .and_then(|distance| distance.checked_add(offset))
            .ok_or_else(cut)?;
        match number(header, 4)? as u32 {
            INTERPRETER => return Err("it asks for an interpreter: it is not static".to_owned()),
            DYNAMIC => {
                let start = number(header + 8, 8)? as usize;
                let length = number(header + 32, 8)? as usize;
                for entry in (0..length).step_by(16) {
                    let place = start.checked_add(entry).ok_or_else(cut)?;
                    if number(place, 8)? == NEEDED {
                        return Err("it asks for a shared library: it is not static".to_owned());
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header, and program headers of these types; a dynamic one has this one entry.
    fn program(machine: u16, types: &[u32], entry: u64) -> Vec<u8> {
        let mut program = b"\x7fELF\x02\x01".to_vec();
        program.resize(64, 0);
        program[18..20].copy_from_slice(&machine.to_le_bytes());
        program[32..40].copy_from_slice(&64u64.to_le_bytes());
        program[54..56].copy_from_slice(&56u16.to_le_bytes());
        program[56..58].copy_from_slice(&(types.len() as u16).to_le_bytes());
        let dynamic = 64 + 56 * types.len() as u64;
        for kind in types {
            let mut header = vec![0; 56];
            header[..4].copy_from_slice(&kind.to_le_bytes());
            header[8..16].copy_from_slice(&dynamic.to_le_bytes());
            header[32..40].copy_from_slice(&16u64.to_le_bytes());
            program.extend(header);
        }
        program.extend(entry.to_le_bytes());
        program.extend([0; 8]);
        program
    }

    #[test]
    fn only_what_needs_nobody_is_static() {
        let check = |program: &[u8]| check_static(program, Machine::X86_64);
        assert_eq!(check(&program(62, &[1], 0)), Ok(()));
        assert_eq!(check(&program(62, &[1, 2], 30)), Ok(()), "relocates itself");
        for (program, reason) in [
            (program(62, &[3], 0), "interpreter"),
            (program(62, &[1, 2], 1), "shared library"),
            (program(183, &[1], 0), "machine 183"),
            (b"#!/bin/sh\n".to_vec(), "not a 64-bit"),
            (program(62, &[1, 2], 1)[..70].to_vec(), "ends too early"),
        ] {
            let error = check(&program).expect_err(reason);
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn this_test_is_not_static() {
        let path = std::env::current_exe().expect("a test knows its own path");
        let machine = if cfg!(target_arch = "x86_64") {
            Machine::X86_64
        } else {
            Machine::Aarch64
        };
        let content = std::fs::read(path).expect("it can be read");
        assert!(check_static(&content, machine).is_err());
    }
}
