//! The agent in a guest of a cloud: `slipway-agent guest` serves, and `slipway-agent call` hands it what a cloud runs there.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use prost::Message;
use slipway_agent_api::proto::{
    GetHostRequest, GetOperationRequest, LocalAnswer, LocalCall, OperationState, RunCommand, StartRequest,
    local_answer::Answer, local_call::Call, start_request::Verb,
};

struct Guest(Child);

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn agent(arguments: &[&str], state: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slipway-agent"));
    command.args(arguments).arg("--state").arg(state);
    command
}

fn start(state: &Path) -> Guest {
    let mut child = agent(&["guest", "--host", "box-1"], state)
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("its output"))
        .read_line(&mut line)
        .expect("a line");
    assert!(line.starts_with("answering at "), "{line}");
    Guest(child)
}

pub fn call(state: &Path, call: Call) -> Answer {
    let encoded = BASE64_STANDARD.encode(LocalCall { call: Some(call) }.encode_to_vec());
    let mut child = agent(&["call"], state)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    // As it comes out of a script: in lines.
    let (first, second) = encoded.split_at(encoded.len() / 2);
    let mut input = child.stdin.take().expect("its input");
    write!(input, "{first}\n{second}\n").expect("written");
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("text");
    let bytes = BASE64_STANDARD.decode(text.trim()).expect("base64");
    let answer = LocalAnswer::decode(bytes.as_slice()).expect("an answer");
    answer.answer.expect("an answer")
}

fn order() -> Call {
    Call::Start(StartRequest {
        operation_id: "greet".to_owned(),
        generation: 7,
        host: "box-1".to_owned(),
        verb: Some(Verb::RunCommand(RunCommand {
            argv: ["echo", "hello"].map(str::to_owned).to_vec(),
            ..RunCommand::default()
        })),
    })
}

#[test]
fn a_guest_carries_out_what_is_called_in_it_and_remembers_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state");
    let output = agent(&["call"], &state)
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && said.contains("`slipway-agent guest` has to run"),
        "{said}"
    );

    let guest = start(&state);
    let socket = std::fs::metadata(state.join("call.sock")).expect("a socket");
    assert_eq!(socket.permissions().mode() & 0o777, 0o600, "for nobody else");
    let Answer::Host(host) = call(&state, Call::GetHost(GetHostRequest {})) else {
        panic!("another answer");
    };
    assert_eq!(host.name, "box-1");
    assert!(host.slots.is_empty() && host.hardware.is_some());
    let Answer::Operation(_) = call(&state, order()) else {
        panic!("it is not taken");
    };
    let asked = || {
        let request = GetOperationRequest {
            operation_id: "greet".to_owned(),
        };
        match call(&state, Call::GetOperation(request)) {
            Answer::Operation(operation) => operation,
            other => panic!("{other:?}"),
        }
    };
    let done = std::iter::repeat_with(asked)
        .find(slipway_agent_api::client::has_ended)
        .expect("it ends");
    assert_eq!(done.state(), OperationState::Succeeded, "{}", done.message);
    assert_eq!(done.command.expect("what it said").output, b"hello\n");

    // The next agent of the guest knows it, and what leads.
    drop(guest);
    let _guest = start(&state);
    assert_eq!(asked().accepted_at, done.accepted_at);
    let Answer::Host(host) = call(&state, Call::GetHost(GetHostRequest {})) else {
        panic!("another answer");
    };
    assert_eq!(host.generation, 7);
    let mut stale = order();
    if let Call::Start(request) = &mut stale {
        request.generation = 6;
    }
    match call(&state, stale) {
        Answer::Problem(problem) => assert_eq!(problem.reason, "StaleGeneration"),
        other => panic!("{other:?}"),
    }
}
