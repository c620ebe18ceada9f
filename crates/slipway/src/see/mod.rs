//! What people ask about their fleet: `slipway describe`, `slipway why` and `slipway plan`. They read with the caller's own
//! kubeconfig and rights, never a Secret, and write nothing. What they show is `slipway-insight`'s; only how it looks is decided here.

pub mod collect;
pub mod connect;
pub mod describe;
pub mod names;
pub mod plan;
pub mod terminal;
mod watch;
pub mod why;

use std::process::ExitCode;

use slipway_insight::State;

pub use self::{collect::Reader, connect::Connection, watch::Watching};

/// How a script tells what was found: 0 ready, 3 waiting or on its way, 4 stuck; 1 and 2 are failures of the command itself.
pub fn exit_code(state: State) -> ExitCode {
    ExitCode::from(match state {
        State::Ready => 0,
        State::Progressing | State::Waiting => 3,
        State::Stuck => 4,
    })
}

/// Runs a command that asks a cluster.
pub fn run(answer: impl Future<Output = Result<ExitCode, String>>) -> ExitCode {
    slipway_runtime::certificates::install_crypto_provider();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start the executor: {error}");
            return ExitCode::FAILURE;
        }
    };
    let answer = runtime.block_on(async {
        tokio::select! {
            answer = answer => answer,
            _ = tokio::signal::ctrl_c() => Ok(ExitCode::from(130)),
        }
    });
    runtime.shutdown_background();
    match answer {
        Ok(code) => code,
        Err(message) => {
            eprintln!("error: {}", terminal::plain(&message));
            ExitCode::FAILURE
        }
    }
}
