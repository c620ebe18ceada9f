//! `slipway man`: the manual, one page for the command and one for each command below it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::{Arg, ArgMatches, Command, value_parser};
use clap_mangen::Man;

pub fn command() -> Command {
    Command::new("man").about("Write the manual pages").arg(
        Arg::new("out")
            .long("out")
            .value_name("DIRECTORY")
            .required(true)
            .value_parser(value_parser!(PathBuf))
            .help("Where the pages go, e.g. /usr/local/share/man/man1"),
    )
}

pub fn run(mut root: Command, matches: &ArgMatches) -> Result<(), String> {
    root.build();
    let directory = matches.get_one::<PathBuf>("out").cloned().unwrap_or_default();
    fs::create_dir_all(&directory)
        .map_err(|error| format!("cannot write to {}: {error}", directory.display()))?;
    write_all(&root, "slipway", &directory)
}

/// The page of a command, and those of the commands below it.
fn write_all(command: &Command, name: &str, directory: &Path) -> Result<(), String> {
    write(command, name, directory)?;
    for below in command
        .get_subcommands()
        .filter(|command| command.get_name() != "help" && !command.is_hide_set())
    {
        write_all(below, &format!("{name}-{}", below.get_name()), directory)?;
    }
    Ok(())
}

fn write(command: &Command, name: &str, directory: &Path) -> Result<(), String> {
    let path = directory.join(format!("{name}.1"));
    let page = Man::new(command.clone().name(name.to_owned()))
        .source(concat!("slipway ", env!("CARGO_PKG_VERSION")))
        .manual("Slipway");
    let mut text = Vec::new();
    page.render(&mut text)
        .and_then(|()| fs::write(&path, text))
        .map_err(|error| format!("cannot write {}: {error}", path.display()))
}
