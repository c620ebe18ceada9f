//! `slipway ui`: a read-only page on loopback that shows what `slipway-insight` says of the fleet, with the caller's own kubeconfig
//! and rights; with `--sign-in` the same for many, each with a token of their own. It watches what the caller may read, never a
//! Secret, and writes nothing.

mod answers;
mod files;
mod live;
mod server;
mod sessions;

use std::{
    fs::OpenOptions,
    io::{IsTerminal, Write, stdout},
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
    process::{Command as Program, ExitCode, Stdio},
    sync::Arc,
};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use rustls::ServerConfig;
use slipway_insight::Catalogue;
use slipway_runtime::{
    Provider,
    certificates::{CertificateFiles, Certificates, SelfSigned},
    command::asker_flags,
};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use self::{
    live::{Live, Shows},
    server::Gate,
    sessions::Sessions,
};
use crate::see::{
    connect::{self, ApiServer, Connection},
    plan::Managers,
};

pub fn command() -> Command {
    Command::new("ui")
        .about("Show the fleet in the browser: a read-only page on this machine, with your own rights")
        .args(connect::arguments().into_iter().map(|argument| {
            if argument.get_id() == "namespace" {
                argument.help("Only this namespace; every namespace if absent")
            } else {
                argument
            }
        }))
        .arg(
            Arg::new("port")
                .long("port")
                .value_name("PORT")
                .value_parser(value_parser!(u16))
                .default_value("0")
                .help("The port on 127.0.0.1; 0 takes one that is free"),
        )
        .arg(
            Arg::new("open")
                .long("open")
                .value_name("BOOL")
                .value_parser(value_parser!(bool))
                .help("Whether to open the browser; if absent it is opened from a terminal"),
        )
        .arg(
            Arg::new("sign-in")
                .long("sign-in")
                .action(ArgAction::SetTrue)
                .conflicts_with_all(["open", "port"])
                .help("For many, as in a cluster: everybody signs in with a token of their own, and the page has no rights itself"),
        )
        .arg(
            Arg::new("bind-address")
                .long("bind-address")
                .value_name("ADDRESS")
                .requires("sign-in")
                .default_value("0.0.0.0:8443")
                .help("Where the page with --sign-in is, by HTTPS"),
        )
        .arg(
            Arg::new("tls-cert-dir")
                .long("tls-cert-dir")
                .value_name("DIR")
                .value_parser(value_parser!(PathBuf))
                .requires("sign-in")
                .help("A folder with tls.crt and tls.key, which may be renewed; if absent a certificate is made at each start"),
        )
        .args(asker_flags("").map(|argument| argument.hide_default_value(true)))
}

pub async fn run(
    catalogue: Catalogue,
    providers: &[Provider],
    matches: &ArgMatches,
) -> Result<ExitCode, String> {
    let shows = Shows {
        catalogue,
        managers: Managers::of(providers, matches),
        namespace: matches
            .get_one::<String>("namespace")
            .cloned()
            .unwrap_or_default(),
        context: connect::context(matches),
    };
    if matches.get_flag("sign-in") {
        return for_many(shows, matches).await;
    }
    let connection = Connection::open(matches).await?;
    let port = matches.get_one::<u16>("port").copied().unwrap_or(0);
    // Loopback alone: there is no other address for this one, since whoever reaches the page reads with these rights.
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        .await
        .map_err(|error| format!("cannot listen on 127.0.0.1:{port} (--port): {error}"))?;
    let address = listener
        .local_addr()
        .map_err(|error| format!("the port is not known: {error}"))?;
    let token = hex::encode(rand::random::<[u8; 32]>());
    // After the number sign nothing is sent to a server or kept in a log.
    let page = format!("http://{address}/#token={token}");
    let live = Live::begin(connection, shows);
    println!("{page}");
    eprintln!("The page shows what you may read, to whoever has this address. Ctrl-C ends it.");
    let desired = matches.get_one::<bool>("open").copied();
    let opened = if desired.unwrap_or_else(|| stdout().is_terminal()) {
        open(&page)
    } else {
        None
    };
    let ended = server::serve(listener, Gate::own(live, token, address.port()), None).await;
    drop(opened);
    match ended {}
}

/// The page with which everybody signs in.
async fn for_many(shows: Shows, matches: &ArgMatches) -> Result<ExitCode, String> {
    let api_server = ApiServer::of(matches)?;
    let tls = acceptor(matches.get_one::<PathBuf>("tls-cert-dir"))?;
    let text = matches
        .get_one::<String>("bind-address")
        .map_or("", String::as_str);
    let listener = TcpListener::bind(text)
        .await
        .map_err(|error| format!("cannot listen on {text} (--bind-address): {error}"))?;
    let address = listener
        .local_addr()
        .map_err(|error| format!("the port is not known: {error}"))?;
    println!("https://{address}/");
    let gate = Gate::SignIn(Sessions::begin(api_server, shows));
    match server::serve(listener, gate, Some(tls)).await {}
}

/// With the certificate of a folder, which is followed as it is renewed, or one that is made now.
fn acceptor(folder: Option<&PathBuf>) -> Result<TlsAcceptor, String> {
    let certificates = match folder {
        Some(folder) => {
            let files = CertificateFiles::in_directory(folder);
            let unusable = |_| {
                format!(
                    "--tls-cert-dir: there is no certificate that can be used in {}: it has to hold tls.crt and tls.key",
                    folder.display()
                )
            };
            let certificates = Arc::new(Certificates::load(&files).map_err(unusable)?);
            tokio::spawn(Arc::clone(&certificates).follow(files, CancellationToken::new()));
            certificates
        }
        None => {
            let made = SelfSigned::generate(&["localhost".to_owned()]).map_err(|error| error.to_string())?;
            Arc::new(made.certificates()?)
        }
    };
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_cert_resolver(certificates);
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// A file that leads the browser to the page, and is gone with this value. The address itself is not given to the browser: other users
/// of the machine can read the arguments of its process.
struct Leads(PathBuf);

impl Drop for Leads {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn open(page: &str) -> Option<Leads> {
    let folder = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let path = folder.join(format!(
        "slipway-ui-{}.html",
        hex::encode(rand::random::<[u8; 8]>())
    ));
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .ok()?;
    let leads = Leads(path);
    writeln!(
        file,
        "<!doctype html><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" content=\"0; url={page}\">"
    )
    .ok()?;
    let program = if cfg!(target_os = "macos") {
        "open"
    } else {
        "xdg-open"
    };
    let mut browser = Program::new(program);
    browser
        .arg(&leads.0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    match browser.spawn() {
        Ok(mut child) => {
            std::thread::spawn(move || child.wait());
            Some(leads)
        }
        Err(error) => {
            eprintln!("The browser was not opened ({program}: {error}): open the address above yourself.");
            None
        }
    }
}
