//! `slipway manifests`: renders what is installed, from the registrations.

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command, value_parser};
use slipway_render::{
    Bundle, Drift, Release, files, health, k9s, local_objects, monitoring, reference, repository, yaml,
};
use slipway_runtime::{
    Package, Provider,
    certificates::{CertificateFiles, ensure_self_signed},
    manager::{local_names, select},
};

/// Where the manager's image is pulled from unless told otherwise. Nothing else knows it: what is rendered names it, and
/// `cargo xtask package --image-repository` renders with another.
const IMAGE_REPOSITORY: &str = "docker.io/slipway/manager";

/// The release of this binary.
pub const RELEASE: &str = concat!("v", env!("CARGO_PKG_VERSION"));

/// That release, with the image it is pulled as.
pub fn release() -> Release {
    Release {
        image: format!("{IMAGE_REPOSITORY}:{RELEASE}"),
        version: RELEASE.to_owned(),
    }
}

pub fn command() -> Command {
    Command::new("manifests")
        .about("Render CRDs, roles, webhooks, Deployments and clusterctl's files from the registrations")
        .arg(
            Arg::new("out")
                .long("out")
                .value_name("DIRECTORY")
                .default_value("deploy")
                .value_parser(value_parser!(PathBuf))
                .help("Where the files are"),
        )
        .arg(
            Arg::new("check")
                .long("check")
                .action(ArgAction::SetTrue)
                .help("Write nothing, and fail if the files differ from what would be rendered"),
        )
        .arg(
            Arg::new("reference")
                .long("reference")
                .value_name("DIRECTORY")
                .value_parser(value_parser!(PathBuf))
                .conflicts_with_all(["local", "crds", "repository"])
                .help("Also render the reference part of the book into this folder"),
        )
        .arg(
            Arg::new("repository")
                .long("repository")
                .value_name("DIRECTORY")
                .value_parser(value_parser!(PathBuf))
                .conflicts_with_all(["check", "local", "crds"])
                .help("Write a folder that clusterctl installs from, with a clusterctl.yaml to call it with"),
        )
        .arg(
            Arg::new("crds")
                .long("crds")
                .action(ArgAction::SetTrue)
                .conflicts_with_all(["check", "local"])
                .help("Print the CRDs alone, for a manager without conversion or for reading"),
        )
        .arg(
            Arg::new("local")
                .long("local")
                .value_name("URL")
                .requires("ca")
                .conflicts_with("check")
                .help("Print CRDs and webhook configurations that call a manager outside the cluster at this URL"),
        )
        .arg(
            Arg::new("ca-file")
                .long("ca-file")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("The CA of that manager's certificate, e.g. ca.crt of --webhook-self-signed"),
        )
        .arg(
            Arg::new("cert-dir")
                .long("cert-dir")
                .value_name("DIRECTORY")
                .value_parser(value_parser!(PathBuf))
                .help("Or the folder of its certificate (--webhook-cert-dir), where one is made if there is none"),
        )
        .group(ArgGroup::new("ca").args(["ca-file", "cert-dir"]))
        .arg(
            Arg::new("providers")
                .long("providers")
                .value_name("NAMES")
                .value_delimiter(',')
                .action(ArgAction::Append)
                .help("Providers or packages to render, separated by commas; all if absent"),
        )
        .arg(
            Arg::new("image-repository")
                .long("image-repository")
                .value_name("REGISTRY/NAME")
                .default_value(IMAGE_REPOSITORY)
                .help("Where Deployments and the chart pull the manager's image from; its tag is the release"),
        )
        .arg(
            Arg::new("release")
                .long("release")
                .value_name("VERSION")
                .default_value(RELEASE)
                .help("The version to render for"),
        )
}

pub fn run(providers: &[Provider], matches: &ArgMatches) -> Result<(), String> {
    let names: Vec<String> = matches
        .get_many("providers")
        .into_iter()
        .flatten()
        .cloned()
        .collect();
    let packages = select(providers, &names).map_err(|error| error.to_string())?;
    let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
    let version = text("release");
    let release = Release {
        image: format!("{}:{version}", text("image-repository")),
        version,
    };
    if matches.get_flag("crds") {
        return print_crds(&packages, &release);
    }
    if let Some(url) = matches.get_one::<String>("local") {
        let path = match matches.get_one::<PathBuf>("cert-dir") {
            Some(directory) => {
                ensure_self_signed(
                    &CertificateFiles::in_directory(directory),
                    &local_names(host(url)),
                )
                .map_err(|error| error.to_string())?;
                directory.join("ca.crt")
            }
            None => matches.get_one::<PathBuf>("ca-file").cloned().unwrap_or_default(),
        };
        let ca = fs::read_to_string(&path)
            .map_err(|error| format!("cannot read the CA {}: {error}", path.display()))?;
        let objects = local_objects(packages, url, &ca).map_err(|error| error.to_string())?;
        let values = objects
            .iter()
            .map(serde_json::to_value)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| error.to_string())?;
        return print(&yaml::documents(&values));
    }
    if let Some(directory) = matches.get_one::<PathBuf>("repository") {
        let count = write_repository(packages, &release, directory)?;
        eprintln!(
            "wrote {count} files; clusterctl finds them with --config {}",
            std::path::absolute(directory)
                .unwrap_or_default()
                .join("clusterctl.yaml")
                .display()
        );
        return Ok(());
    }
    let mut rendered = files(packages, &release).map_err(|error| error.to_string())?;
    if rendered.is_empty() {
        eprintln!("note: no provider is registered, so there is nothing to render");
    } else {
        rendered.extend(monitoring(providers).map_err(|error| error.to_string())?);
        rendered.extend(health(providers));
        rendered.extend(k9s(providers));
    }
    let directory = matches.get_one::<PathBuf>("out").cloned().unwrap_or_default();
    let check = matches.get_flag("check");
    let drift = Drift::find(&rendered, &directory);
    bring_up_to_date(&rendered, &directory, drift, check)?;
    if let Some(directory) = matches.get_one::<PathBuf>("reference") {
        let pages = reference(providers, &crate::command(providers)).map_err(|error| error.to_string())?;
        let drift = Drift::find_among(&pages, directory, |_| true);
        bring_up_to_date(&pages, directory, drift, check)?;
    }
    Ok(())
}

/// Writes what differs, or says that it does.
fn bring_up_to_date(
    files: &BTreeMap<PathBuf, String>,
    directory: &Path,
    drift: std::io::Result<Drift>,
    check: bool,
) -> Result<(), String> {
    let drift = drift.map_err(|error| format!("cannot read {}: {error}", directory.display()))?;
    if check && !drift.is_empty() {
        return Err(format!(
            "{} differs from what the registrations say; run `cargo xtask manifests`:\n{drift}",
            directory.display()
        ));
    }
    drift
        .repair(files, directory)
        .map_err(|error| format!("cannot write to {}: {error}", directory.display()))
}

/// Adds this release to a folder that clusterctl installs from; answers with the number of files.
pub fn write_repository(
    packages: Vec<&Package>,
    release: &Release,
    directory: &Path,
) -> Result<usize, String> {
    let cannot_write = |error| format!("cannot write to {}: {error}", directory.display());
    let directory = std::path::absolute(directory).map_err(cannot_write)?;
    let files = repository(packages, release, &directory).map_err(|error| error.to_string())?;
    for (path, text) in &files {
        let path = directory.join(path);
        path.parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::write(&path, text))
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(files.len())
}

/// The host of `https://host:port/path`.
fn host(url: &str) -> &str {
    let rest = url.strip_prefix("https://").unwrap_or(url);
    let authority = rest.split('/').next().unwrap_or_default();
    match authority.strip_prefix('[') {
        Some(address) => address.split(']').next().unwrap_or_default(),
        None => authority.rsplit_once(':').map_or(authority, |(host, _)| host),
    }
}

fn print_crds(packages: &[&Package], release: &Release) -> Result<(), String> {
    let bundles = Bundle::join(packages.iter().copied()).map_err(|error| error.to_string())?;
    let crds: Vec<_> = bundles
        .iter()
        .flat_map(|bundle| bundle.objects(release))
        .filter(|object| object["kind"] == "CustomResourceDefinition")
        .collect();
    print(&yaml::documents(&crds))
}

/// A reader that has seen enough (`| head`) is no failure.
fn print(text: &str) -> Result<(), String> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write to standard output: {error}"))
        }
        _ => Ok(()),
    }
}
