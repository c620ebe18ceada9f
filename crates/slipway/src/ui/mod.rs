//! `slipway ui`: a read-only page on loopback that shows what `slipway-insight` says of the fleet, with the caller's own kubeconfig
//! and rights. It watches what the caller may read, never a Secret, and writes nothing.

mod answers;
mod files;
mod live;
mod server;

use std::{
    fs::OpenOptions,
    io::{IsTerminal, Write, stdout},
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
    process::{Command as Program, ExitCode, Stdio},
    sync::Arc,
};

use clap::{Arg, ArgMatches, Command, value_parser};
use slipway_insight::Catalogue;
use tokio::net::TcpListener;

use self::live::Live;
use crate::see::connect::{self, Connection};

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
}

pub async fn run(catalogue: Catalogue, matches: &ArgMatches) -> Result<ExitCode, String> {
    let connection = Connection::open(matches).await?;
    let port = matches.get_one::<u16>("port").copied().unwrap_or(0);
    // Loopback alone: there is no flag for another address, since whoever reaches the page reads with these rights.
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        .await
        .map_err(|error| format!("cannot listen on 127.0.0.1:{port} (--port): {error}"))?;
    let address = listener
        .local_addr()
        .map_err(|error| format!("the port is not known: {error}"))?;
    let token = hex::encode(rand::random::<[u8; 32]>());
    // After the number sign nothing is sent to a server or kept in a log.
    let page = format!("http://{address}/#token={token}");
    let namespace = matches
        .get_one::<String>("namespace")
        .cloned()
        .unwrap_or_default();
    let live = Live::begin(connection, catalogue, namespace, connect::context(matches));
    println!("{page}");
    eprintln!("The page shows what you may read, to whoever has this address. Ctrl-C ends it.");
    let desired = matches.get_one::<bool>("open").copied();
    let opened = if desired.unwrap_or_else(|| stdout().is_terminal()) {
        open(&page)
    } else {
        None
    };
    let ended = server::serve(listener, Arc::clone(&live), &token).await;
    drop(opened);
    match ended {}
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
