//! The guides, followed literally: the commands of their `sh` blocks, in order, in a real shell.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};

/// Nothing a guide waits for takes this long, unless it never comes.
const HANG_GUARD: Duration = Duration::from_mins(20);

/// A guide under `docs/guides`.
pub struct Guide {
    text: String,
}

impl Guide {
    pub fn read(name: &str) -> Result<Self> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../docs/guides")
            .join(name);
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Ok(Self { text })
    }

    /// The commands of the whole guide.
    pub fn all(&self) -> String {
        commands(&self.text)
    }
}

/// What stands in `sh` blocks.
fn commands(text: &str) -> String {
    let mut commands = String::new();
    let mut is_command = false;
    for line in text.lines() {
        match line {
            "```sh" => is_command = true,
            "```" => is_command = false,
            _ if is_command => {
                commands.push_str(line);
                commands.push('\n');
            }
            _ => {}
        }
    }
    commands
}

/// A shell as a reader of the guide has it.
pub struct Shell {
    pub home: PathBuf,
    /// Lines that the reader pasted before, such as `export PATH=…`.
    pub prelude: String,
}

impl Shell {
    /// Runs commands until the first that fails; answers with what they printed.
    pub async fn run(&self, commands: &str) -> Result<String> {
        let running = tokio::process::Command::new("bash")
            .args(["-euo", "pipefail", "-c"])
            .arg(format!("{}\nset -x\n{commands}", self.prelude))
            .current_dir(&self.home)
            .env("HOME", &self.home)
            .env_remove("KUBECONFIG")
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(HANG_GUARD, running)
            .await
            .context("the commands hang")??;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (said, errors) = (text(&output.stdout), text(&output.stderr));
        ensure!(output.status.success(), "{}\n{said}\n{errors}", output.status);
        Ok(said)
    }
}

#[test]
fn commands_are_those_of_sh_blocks() {
    let text = "# A\n```\nnot this\n```\n## B\n```sh\none \\\n  two\n```\ntext\n```sh\nthree\n```\n```yaml\nno\n```\n";
    assert_eq!(commands(text), "one \\\n  two\nthree\n");
}
