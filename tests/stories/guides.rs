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

    /// The blocks of commands below a heading of the second level.
    pub fn section(&self, heading: &str) -> Result<Vec<String>> {
        let mut sections = self.text.split("\n## ").skip(1);
        let section = sections
            .find(|section| section.lines().next() == Some(heading))
            .with_context(|| format!("there is no section {heading:?}"))?;
        let blocks = blocks(section);
        ensure!(!blocks.is_empty(), "no commands under {heading:?}");
        Ok(blocks)
    }

    /// The commands of the whole guide.
    pub fn all(&self) -> String {
        blocks(&self.text).concat()
    }
}

/// What stands in `sh` blocks.
fn blocks(text: &str) -> Vec<String> {
    let mut blocks: Vec<String> = Vec::new();
    let mut is_command = false;
    for line in text.lines() {
        match line {
            "```sh" => {
                is_command = true;
                blocks.push(String::new());
            }
            "```" => is_command = false,
            _ if is_command => {
                if let Some(block) = blocks.last_mut() {
                    block.push_str(line);
                    block.push('\n');
                }
            }
            _ => {}
        }
    }
    blocks
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
    assert_eq!(blocks(text), ["one \\\n  two\n", "three\n"]);
}
