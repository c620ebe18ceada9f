//! Names for completion: `slipway names describe` prints clusters, `slipway names why` objects as `kind/name`. The completion scripts
//! ask for them.

use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command};
use clap_complete::Shell;
use slipway_insight::{Catalogue, Part};

use super::{
    collect::Reader,
    connect::{self, Connection},
};

pub fn command() -> Command {
    Command::new("names")
        .about("Print the names that complete an argument of another command")
        .hide(true)
        .arg(
            Arg::new("for")
                .required(true)
                .value_parser(["describe", "why"])
                .help("The command that they are for"),
        )
        .args(connect::arguments())
}

pub async fn run(catalogue: &Catalogue, matches: &ArgMatches) -> Result<ExitCode, String> {
    let connection = Connection::open(matches).await?;
    let reader = Reader {
        connection: &connection,
        catalogue,
    };
    let found = reader.fleet(Some(&connection.namespace)).await?;
    let is_for_clusters = matches
        .get_one::<String>("for")
        .is_some_and(|command| command == "describe");
    for (id, _) in found.objects.iter() {
        let is_cluster = catalogue.kind(id).part == Part::Cluster;
        let name = match is_for_clusters {
            true if is_cluster => id.name.clone(),
            true => continue,
            false => format!("{}/{}", id.kind.to_lowercase(), id.name),
        };
        if is_plain(&name) {
            println!("{name}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A shell may expand what completes a word.
fn is_plain(name: &str) -> bool {
    name.chars()
        .all(|letter| letter.is_ascii_alphanumeric() || "-./".contains(letter))
}

/// What is added to a shell's completion script, so that it knows live names.
pub fn script(shell: Shell) -> &'static str {
    match shell {
        Shell::Bash => BASH,
        Shell::Fish => FISH,
        _ => "",
    }
}

const BASH: &str = r#"
_slipway_with_names() {
    local current="${COMP_WORDS[COMP_CWORD]}" command="${COMP_WORDS[1]}"
    if [[ ${COMP_CWORD} -eq 2 && "${current}" != -* && ( "${command}" == describe || "${command}" == why ) ]]; then
        COMPREPLY=($(compgen -W "$(slipway names "${command}" 2>/dev/null)" -- "${current}"))
        return 0
    fi
    _slipway "$@"
}
complete -F _slipway_with_names -o bashdefault -o default slipway
"#;

const FISH: &str = r#"
complete -c slipway -n "__fish_seen_subcommand_from describe" -f -a "(slipway names describe 2>/dev/null)"
complete -c slipway -n "__fish_seen_subcommand_from why" -f -a "(slipway names why 2>/dev/null)"
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_shell_would_expand_is_no_name() {
        assert!(is_plain("machinepool/shop-work.1"));
        for name in ["$(reboot)", "a b", "`id`", "a;b", "ä"] {
            assert!(!is_plain(name), "{name}");
        }
    }
}
