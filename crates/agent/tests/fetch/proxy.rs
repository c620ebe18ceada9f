//! A web server on loopback that serves files and misbehaves as it is told, one answer after the other.

use std::{
    collections::{BTreeMap, VecDeque},
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

/// How one request is answered. After the last of them, all is well.
#[derive(Debug, Clone)]
pub enum Fault {
    /// The connection ends after so many bytes of the body.
    Cut(usize),
    /// The connection ends before an answer.
    NoAnswer,
    /// So many bytes, then nothing, with the connection open.
    Stall(usize),
    Status(u16, &'static str),
    /// The whole file, as if no range had been asked for.
    IgnoreRange,
    /// The right bytes, said to be others.
    LieAboutRange,
    /// The file is another one from here on, and the bytes differ.
    Change,
    /// Little by little.
    Drip(usize),
}

#[derive(Debug, Clone, Default)]
pub struct Log {
    /// The `Range` headers in the order they came.
    pub ranges: Vec<String>,
    pub sent: u64,
    pub paths: Vec<String>,
    pub authorizations: Vec<String>,
}

/// What is served.
enum Files {
    /// This file, whatever is asked for.
    One(Vec<u8>),
    /// By the last word of the path; what is not there is empty.
    Named(BTreeMap<String, Vec<u8>>),
}

impl Files {
    fn at(&self, path: &str) -> Vec<u8> {
        match self {
            Self::One(file) => file.clone(),
            Self::Named(files) => {
                let name = path.rsplit('/').next().unwrap_or_default();
                files.get(name).cloned().unwrap_or_default()
            }
        }
    }
}

struct State {
    files: Files,
    version: u32,
    faults: VecDeque<Fault>,
    log: Log,
}

pub struct Proxy {
    pub address: String,
    state: Arc<Mutex<State>>,
}

impl Proxy {
    pub fn new(file: Vec<u8>, faults: impl IntoIterator<Item = Fault>) -> Self {
        Self::start(Files::One(file), faults)
    }

    /// A registry, as far as pulling goes: manifests and blobs by their digests.
    pub fn registry(files: BTreeMap<String, Vec<u8>>, faults: impl IntoIterator<Item = Fault>) -> Self {
        Self::start(Files::Named(files), faults)
    }

    fn start(files: Files, faults: impl IntoIterator<Item = Fault>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}/images", listener.local_addr().expect("an address"));
        let state = Arc::new(Mutex::new(State {
            files,
            version: 1,
            faults: faults.into_iter().collect(),
            log: Log::default(),
        }));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                thread::spawn(move || serve(&stream, &state));
            }
        });
        Self { address, state }
    }

    pub fn log(&self) -> Log {
        self.state.lock().expect("the state").log.clone()
    }

    pub fn faults_left(&self) -> usize {
        self.state.lock().expect("the state").faults.len()
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

fn serve(mut stream: &TcpStream, state: &Mutex<State>) {
    let mut received = Vec::new();
    let mut piece = [0; 4096];
    loop {
        while !received.windows(4).any(|four| four == b"\r\n\r\n") {
            match stream.read(&mut piece) {
                Ok(length @ 1..) => received.extend_from_slice(&piece[..length]),
                _ => return,
            }
        }
        let head = String::from_utf8_lossy(&received).into_owned();
        received.clear();
        if !answer(stream, &head, state) {
            let _ = stream.shutdown(Shutdown::Both);
            return;
        }
    }
}

/// Whether the connection goes on.
fn answer(mut stream: &TcpStream, head: &str, state: &Mutex<State>) -> bool {
    let (fault, file, version) = {
        let mut state = state.lock().expect("the state");
        let range = header(head, "range").unwrap_or_default().to_owned();
        state.log.ranges.push(range);
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let file = state.files.at(&path);
        state.log.paths.push(path);
        if let Some(authorization) = header(head, "authorization") {
            let authorization = authorization.to_owned();
            state.log.authorizations.push(authorization);
        }
        let fault = state.faults.pop_front();
        if let Some(Fault::Change) = fault {
            state.version += 1;
        }
        (fault, file, state.version)
    };
    let etag = format!("\"version-{version}\"");
    let whole = file.len();
    let same = header(head, "if-range").is_none_or(|etag_asked| etag_asked == etag);
    let asked = header(head, "range")
        .and_then(|range| range.strip_prefix("bytes="))
        .and_then(|range| range.split_once('-'))
        .and_then(|(first, last)| {
            let last = match last {
                "" => whole.saturating_sub(1),
                last => last.parse::<usize>().ok()?,
            };
            Some((first.parse::<usize>().ok()?, last))
        })
        .filter(|_| same && !matches!(fault, Some(Fault::IgnoreRange)));
    let (status, first, end) = match asked {
        Some((first, last)) => ("206 Partial Content", first, (last + 1).min(whole)),
        None => ("200 OK", 0, whole),
    };
    match &fault {
        Some(Fault::NoAnswer) => return false,
        Some(Fault::Status(status, headers)) => {
            let text = format!("HTTP/1.1 {status} No\r\nContent-Length: 0\r\n{headers}\r\n");
            return stream.write_all(text.as_bytes()).is_ok();
        }
        _ => {}
    }
    let told = if matches!(fault, Some(Fault::LieAboutRange)) {
        first + 1
    } else {
        first
    };
    let range = match asked {
        Some(_) => format!("Content-Range: bytes {told}-{}/{whole}\r\n", end - 1),
        None => String::new(),
    };
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nETag: {etag}\r\n{range}\r\n",
        end - first
    );
    if stream.write_all(text.as_bytes()).is_err() {
        return false;
    }
    let body = &file[first..end];
    let (now, after) = match fault {
        Some(Fault::Cut(length)) => (&body[..length.min(body.len())], Some(Duration::ZERO)),
        Some(Fault::Stall(length)) => (&body[..length.min(body.len())], Some(Duration::from_secs(20))),
        _ => (body, None),
    };
    let step = match fault {
        Some(Fault::Drip(step)) => step.max(1),
        _ => 64 << 10,
    };
    for piece in now.chunks(step) {
        if stream.write_all(piece).is_err() {
            return false;
        }
        state.lock().expect("the state").log.sent += piece.len() as u64;
    }
    match after {
        Some(pause) => {
            thread::sleep(pause);
            false
        }
        None => true,
    }
}
