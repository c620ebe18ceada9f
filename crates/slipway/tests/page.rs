//! The page of `slipway ui` in Chromium, over a real API server: what `tests/page/look.mjs` looks at. The world has three clusters; what
//! changes in it changes when that program asks for it. Nobody who has the page open sees a Secret, nor may read one.

#[path = "page/world.rs"]
mod world;

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{Api, Client, Config, api::DeleteParams};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::Command,
};

use world::{
    ALL, CANARY, CONTROL_PLANE, CORE, EDGE, FEW, INFRASTRUCTURE, KARPENTER, STRANGER, VISITOR, World,
    may_read,
};

/// What the page with sign-in answers to a question with this token.
async fn asked(address: &str, path: &str, token: Option<&str>) -> Result<(u16, Value)> {
    let mut config = Config::new(address.parse()?);
    config.accept_invalid_certs = true;
    let client = Client::try_from(config)?;
    let mut request = http::Request::get(path);
    if let Some(token) = token {
        request = request.header(http::header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let answer = client.send(request.body(kube::client::Body::empty())?).await?;
    let status = answer.status().as_u16();
    let body = answer.into_body().collect_bytes().await?;
    Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
}

/// A copy of the browser's test with the packages that it needs; or what is missing for it on this machine.
fn browser() -> Result<PathBuf, String> {
    for program in ["/usr/bin/chromium", "/usr/bin/node"] {
        if !Path::new(program).exists() {
            return Err(format!(
                "there is no {program}: `apt-get install chromium nodejs npm` as root"
            ));
        }
    }
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/page");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page");
    let lock = "package-lock.json";
    let is_installed =
        std::fs::read(from.join(lock)).ok() == std::fs::read(folder.join("installed.json")).ok();
    let copied = std::fs::create_dir_all(&folder).and_then(|()| {
        for file in ["look.mjs", "package.json", lock] {
            std::fs::copy(from.join(file), folder.join(file))?;
        }
        Ok(())
    });
    copied.map_err(|error| format!("the test cannot be copied: {error}"))?;
    if is_installed {
        return Ok(folder);
    }
    let installed = std::process::Command::new("npm")
        .args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"])
        .current_dir(&folder)
        .stdin(Stdio::null())
        .output();
    match installed {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            return Err(format!(
                "npm ci failed: {}",
                String::from_utf8_lossy(&output.stderr)
            ));
        }
        Err(error) => return Err(format!("npm does not start: {error}")),
    }
    let noted = std::fs::copy(folder.join(lock), folder.join("installed.json"));
    noted.map_err(|error| format!("the test cannot be copied: {error}"))?;
    Ok(folder)
}

#[tokio::test]
async fn the_page_shows_a_fleet_and_follows_it() -> Result<()> {
    let folder = match browser() {
        Ok(folder) => folder,
        Err(missing) => {
            println!("report: skipped: looking at the page needs a browser: {missing}");
            return Ok(());
        }
    };
    let world = World::start().await?;
    let (_many, many) = world.page_for_many().await?;
    let visitor = world.account(VISITOR, true).await?;
    let groups = [CORE, CONTROL_PLANE, INFRASTRUCTURE, EDGE, KARPENTER];
    let rules = vec![may_read(&groups, &["*"]), may_read(&[""], &["events"])];
    let (_all, all) = world.page(ALL, rules).await?;
    let (_few, few) = world.page(FEW, vec![may_read(&[CORE], &["clusters"])]).await?;
    let page = json!({"all": all, "few": few, "many": many, "visitor": visitor, "namespace": world.namespace, "canary": CANARY,
        "pictures": std::env::var("SLIPWAY_PAGE_PICTURES").ok()});
    let mut looks = Command::new("/usr/bin/node")
        .arg("look.mjs")
        .current_dir(folder)
        .env("PAGE", page.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut asks = looks.stdin.take().context("its input is piped")?;
    let mut lines = BufReader::new(looks.stdout.take().context("its output is piped")?).lines();
    let mut has_seen = false;
    while let Some(line) = lines.next_line().await? {
        println!("{line}");
        has_seen |= line == "seen";
        if let Some(what) = line.strip_prefix("please ") {
            world.please(what).await?;
            asks.write_all(b"done\n").await?;
        }
    }
    let status = looks.wait().await?;
    ensure!(
        status.success() && has_seen,
        "the page is not as it should be: {status}"
    );
    world.nothing_but_looks(&[ALL, FEW, VISITOR])
}

/// Without a browser: a token opens what its owner may read, and nothing else does.
#[tokio::test]
async fn the_page_for_many_shows_everybody_what_their_own_token_may_read() -> Result<()> {
    let world = World::start().await?;
    let (_page, address) = world.page_for_many().await?;
    let visitor = world.account(VISITOR, true).await?;
    let stranger = world.account(STRANGER, false).await?;
    for token in [
        None,
        Some(""),
        Some("nonsense"),
        Some(&visitor[..visitor.len() - 4]),
    ] {
        for path in ["/api/fleet", "/api/watch", "/api/plan?kind=Cluster&name=shop"] {
            let (status, said) = asked(&address, path, token).await?;
            ensure!(
                status == 401 && said["signIn"] == true,
                "{path} {token:?}: {status} {said}"
            );
        }
    }
    let clusters = async |token: &str| -> Result<Value> {
        // The first lists take their time.
        for _ in 0..400 {
            let (status, said) = asked(&address, "/api/fleet", Some(token)).await?;
            ensure!(status == 200, "{status} {said}");
            let is_read = said["fleet"]["rows"]
                .as_array()
                .is_some_and(|rows| rows.len() == 3)
                || said["unreadable"].as_array().is_some_and(|kinds| kinds.len() > 3);
            if is_read {
                return Ok(said);
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        anyhow::bail!("nothing is read for a token")
    };
    let seen = clusters(&visitor).await?;
    ensure!(
        seen["unreadable"] == json!([]),
        "the chart's role is not enough: {}",
        seen["unreadable"]
    );
    let nothing = clusters(&stranger).await?;
    ensure!(nothing["fleet"]["rows"] == json!([]), "{nothing}");
    // Also when another has it open.
    let path = format!("/api/cluster?namespace={}&name=shop", world.namespace);
    ensure!(asked(&address, &path, Some(&visitor)).await?.0 == 200);
    ensure!(asked(&address, &path, Some(&stranger)).await?.0 == 404);
    let everything = format!("{path}&all=true");
    let text = asked(&address, &everything, Some(&visitor)).await?.1.to_string();
    ensure!(!text.contains(CANARY), "{text}");
    // A token that is taken away opens nothing any more.
    let accounts: Api<ServiceAccount> = Api::namespaced(world.cluster.client(), "default");
    accounts.delete("visitor", &DeleteParams::default()).await?;
    let mut status = 200;
    for _ in 0..600 {
        status = asked(&address, "/api/fleet", Some(&visitor)).await?.0;
        if status == 401 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    ensure!(status == 401, "its token still opens the page");
    world.nothing_but_looks(&[VISITOR, STRANGER])
}
