//! Speaking to the agent in a guest: MOC runs `slipway-agent call` there with the call on its standard input, and what that says is the answer.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use prost::Message;
use slipway_agent_api::{
    Class, Problem,
    proto::{LocalAnswer, LocalCall, local_answer::Answer, local_call::Call},
};
use slipway_moc::{Cloud, wire::ExecutionState, wire::compute::InstanceView};

/// Lines as base64 is mostly broken.
const LINE: usize = 76;
/// The longest part of a command's own words that is shown.
const LONGEST: usize = 200;

/// What MOC runs in the guest. It is a secret: bootstrap data is in it.
pub fn script(call: &LocalCall) -> String {
    let encoded = BASE64_STANDARD.encode(call.encode_to_vec());
    let mut script = String::from("#!/bin/sh\nexec slipway-agent call <<'END'\n");
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(LINE.min(rest.len()));
        script.push_str(line);
        script.push('\n');
        rest = after;
    }
    script.push_str("END\n");
    script
}

fn away(message: String) -> Problem {
    Problem::new(Class::Transient, "Unreachable", message)
}

fn plain(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    words.chars().take(LONGEST).collect()
}

/// What the command said.
pub fn answer(view: &InstanceView) -> Result<Answer, Problem> {
    if view.execution_state() != ExecutionState::Succeeded || view.exit_code != 0 {
        return Err(away(format!(
            "`slipway-agent call` failed in the guest with {}: {}",
            view.exit_code,
            plain(&view.error)
        )));
    }
    let unreadable = || away("the guest's agent says nothing that can be read".to_owned());
    let line = view
        .output
        .split_whitespace()
        .next_back()
        .ok_or_else(unreadable)?;
    let bytes = BASE64_STANDARD.decode(line).map_err(|_| unreadable())?;
    let answer = LocalAnswer::decode(bytes.as_slice()).map_err(|_| unreadable())?;
    match answer.answer.ok_or_else(unreadable)? {
        Answer::Problem(problem) => Err(Problem::from_proto(&problem)),
        answer => Ok(answer),
    }
}

/// One call. It may be made twice.
pub async fn call(cloud: &Cloud, machine: &[u8], call: Call) -> Result<Answer, Problem> {
    let call = LocalCall { call: Some(call) };
    let view = cloud
        .run_command(machine.to_vec(), script(&call))
        .await
        .map_err(|error| away(error.to_string()))?;
    answer(&view)
}

/// An answer of another kind than was asked for.
pub fn odd() -> Problem {
    away("the guest's agent answered another question".to_owned())
}

#[cfg(test)]
mod tests {
    use slipway_agent_api::proto::{Host, RunBootstrap, StartRequest, start_request::Verb};

    use super::*;

    #[test]
    fn a_call_is_a_script_without_a_word_of_its_contents() {
        let call = LocalCall {
            call: Some(Call::Start(StartRequest {
                verb: Some(Verb::RunBootstrap(RunBootstrap {
                    data: b"canary'; rm -rf /\nEND\n".repeat(20),
                    ..RunBootstrap::default()
                })),
                ..StartRequest::default()
            })),
        };
        let script = script(&call);
        let (head, rest) = script.split_once("<<'END'\n").expect("a document");
        assert_eq!(head, "#!/bin/sh\nexec slipway-agent call ");
        let body = rest.strip_suffix("END\n").expect("its end");
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=\n".contains(&byte);
        assert!(body.bytes().all(is_plain));
        let bytes = BASE64_STANDARD.decode(body.replace('\n', "")).expect("base64");
        assert_eq!(LocalCall::decode(bytes.as_slice()).expect("a call"), call);
    }

    #[test]
    fn what_is_no_answer_is_a_host_that_is_away() {
        let view = |state: ExecutionState, exit_code, output: &str| InstanceView {
            execution_state: state.into(),
            exit_code,
            output: output.to_owned(),
            error: "no such file".to_owned(),
        };
        let host = LocalAnswer {
            answer: Some(Answer::Host(Host::default())),
        };
        let good = BASE64_STANDARD.encode(host.encode_to_vec());
        let said = view(ExecutionState::Succeeded, 0, &format!("a greeting\n{good}\n"));
        assert_eq!(answer(&said), Ok(Answer::Host(Host::default())));
        for view in [
            view(ExecutionState::Failed, 127, ""),
            view(ExecutionState::Rebooting, 0, &good),
            view(ExecutionState::Succeeded, 0, ""),
            view(ExecutionState::Succeeded, 0, "hello"),
        ] {
            let problem = answer(&view).expect_err("no answer");
            assert_eq!(
                (problem.class, problem.reason.as_str()),
                (Class::Transient, "Unreachable")
            );
        }
    }
}
