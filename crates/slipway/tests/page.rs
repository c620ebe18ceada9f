//! The page of `slipway ui` in Chromium, over a real API server: what `tests/page/look.mjs` looks at. The world has three clusters; what
//! changes in it changes when that program asks for it. Nobody who has the page open sees a Secret, nor may read one.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use slipway_testbed::{Cluster, WorkloadCluster, audit::Request, install};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, Command},
};

const CORE: &str = "cluster.x-k8s.io";
const CONTROL_PLANE: &str = "controlplane.cluster.x-k8s.io";
const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";
const CANARY: &str = "canary-5b1e77";
/// What would run if text were markup.
const HOSTILE: &str = r#"<img src=x onerror="window.ran=1"><script>window.ran=1</script>"#;
/// Who may read what the guide says, and who may read Clusters alone.
const ALL: &str = "page-all";
const FEW: &str = "page-few";

fn kinds() -> Vec<Value> {
    let kinds = [
        (CORE, "v1beta2", "Cluster"),
        (CORE, "v1beta2", "MachineDeployment"),
        (CORE, "v1beta2", "Machine"),
        (CONTROL_PLANE, "v1beta2", "KThreesControlPlane"),
        (INFRASTRUCTURE, "v1alpha1", "EdgeCluster"),
        (INFRASTRUCTURE, "v1alpha1", "EdgeMachine"),
    ];
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = |(group, version, kind): (&str, &str, &str)| {
        let singular = kind.to_lowercase();
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{singular}s.{group}")},
            "spec": {
                "group": group, "scope": "Namespaced",
                "names": {"kind": kind, "plural": format!("{singular}s"), "singular": singular},
                "versions": [{"name": version, "served": true, "storage": true, "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": any, "status": any}}}}],
            },
        })
    };
    kinds.map(definition).into()
}

struct World {
    cluster: Cluster,
    namespace: String,
}

impl World {
    async fn start() -> Result<Self> {
        let cluster = WorkloadCluster::builder()
            .name("page")
            .audit_everything_of(ALL)
            .audit_everything_of(FEW)
            .start()
            .await?;
        install::install(&cluster.client(), &kinds()).await?;
        let namespace = cluster.namespace("page").await?;
        let world = Self { cluster, namespace };
        world.shop().await?;
        world.others().await?;
        Ok(world)
    }

    fn api(&self, group: &str, kind: &str) -> Api<DynamicObject> {
        let version = if group == INFRASTRUCTURE {
            "v1alpha1"
        } else {
            "v1beta2"
        };
        let kind = GroupVersionKind::gvk(group, version, kind);
        Api::namespaced_with(
            self.cluster.client(),
            &self.namespace,
            &ApiResource::from_gvk(&kind),
        )
    }

    /// Creates an object of a cluster with its status, and gives what refers to it as an owner.
    async fn put(
        &self,
        (group, kind): (&str, &str),
        name: &str,
        of: &str,
        spec: &Value,
        status: &Value,
        owner: Option<&Value>,
    ) -> Result<Value> {
        let api = self.api(group, kind);
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(
            group,
            if group == INFRASTRUCTURE {
                "v1alpha1"
            } else {
                "v1beta2"
            },
            kind,
        ));
        let mut object = DynamicObject::new(name, &resource).data(json!({"spec": spec}));
        object.metadata.labels = Some([("cluster.x-k8s.io/cluster-name".to_owned(), of.to_owned())].into());
        if let Some(owner) = owner {
            object.metadata.owner_references = Some(vec![serde_json::from_value(owner.clone())?]);
        }
        let made = api.create(&PostParams::default(), &object).await?;
        self.say(group, kind, name, status).await?;
        Ok(
            json!({"apiVersion": resource.api_version, "kind": kind, "name": name, "controller": true, "uid": made.metadata.uid}),
        )
    }

    async fn say(&self, group: &str, kind: &str, name: &str, status: &Value) -> Result<()> {
        let patch = Patch::Merge(json!({"status": status}));
        self.api(group, kind)
            .patch_status(name, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    async fn shop(&self) -> Result<()> {
        let refers =
            |group: &str, kind: &str, name: &str| json!({"apiGroup": group, "kind": kind, "name": name});
        let version = "v1.34.2+k3s1";
        self.put(
            (CORE, "Cluster"),
            "shop",
            "shop",
            &json!({
                "infrastructureRef": refers(INFRASTRUCTURE, "EdgeCluster", "shop"),
                "controlPlaneRef": refers(CONTROL_PLANE, "KThreesControlPlane", "shop"),
            }),
            &says(&["Available=False/NotAvailable/WorkersAvailable: 1 of 3 machines"]),
            None,
        )
        .await?;
        self.put(
            (INFRASTRUCTURE, "EdgeCluster"),
            "shop",
            "shop",
            &json!({}),
            &says(&["Ready=True"]),
            None,
        )
        .await?;
        let mut status = says(&["Ready=True", "Available=True"]);
        status["version"] = json!(version);
        self.put(
            (CONTROL_PLANE, "KThreesControlPlane"),
            "shop",
            "shop",
            &json!({"version": version}),
            &status,
            None,
        )
        .await?;
        let spec = json!({"replicas": 3, "clusterName": "shop", "template": {"spec": {"version": version}}});
        let status = with_replicas(&["Available=False/NotAvailable/1 of 3 machines are available"], 1);
        let work = self
            .put((CORE, "MachineDeployment"), "work", "shop", &spec, &status, None)
            .await?;
        for (name, is_well) in [("shop-a", true), ("shop-b", false), ("shop-c", true)] {
            let spec = json!({"clusterName": "shop", "version": version, "infrastructureRef": refers(INFRASTRUCTURE, "EdgeMachine", name)});
            let status = if is_well {
                says(&["Ready=True"])
            } else {
                says(&["Ready=False/NotReady/InfrastructureReady: no host"])
            };
            let machine = self
                .put((CORE, "Machine"), name, "shop", &spec, &status, Some(&work))
                .await?;
            let status = if is_well {
                says(&["Ready=True"])
            } else {
                says(&["Ready=False/NoHost/2 hosts: 1 has too little memory, 1 is claimed by shop-a"])
            };
            self.put(
                (INFRASTRUCTURE, "EdgeMachine"),
                name,
                "shop",
                &json!({}),
                &status,
                Some(&machine),
            )
            .await?;
        }
        self.event("EdgeMachine", "shop-b", "NoRoom", "no host is free")
            .await?;
        Ok(())
    }

    async fn others(&self) -> Result<()> {
        let well = says(&["Available=True"]);
        self.put(
            (CORE, "Cluster"),
            "calm",
            "calm",
            &json!({"topology": {"version": "v1.34.1"}}),
            &well,
            None,
        )
        .await?;
        let hostile = format!("Available=False/Hostile/{HOSTILE}");
        let spec = json!({"topology": {"version": HOSTILE, "class": HOSTILE}, "password": CANARY});
        self.put(
            (CORE, "Cluster"),
            "hostile",
            "hostile",
            &spec,
            &says(&[&hostile]),
            None,
        )
        .await?;
        let spec = json!({"clusterName": "hostile", "version": HOSTILE});
        self.put(
            (CORE, "Machine"),
            "hostile-a",
            "hostile",
            &spec,
            &says(&[&hostile.replace("Available", "Ready")]),
            None,
        )
        .await?;
        self.event("Machine", "hostile-a", HOSTILE, HOSTILE).await?;
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "stringData": {"value": CANARY},
            "metadata": {"name": "shop-kubeconfig", "namespace": self.namespace, "labels": {"cluster.x-k8s.io/cluster-name": "shop"}},
        });
        install::install(&self.cluster.client(), &[secret]).await?;
        Ok(())
    }

    async fn event(&self, kind: &str, about: &str, reason: &str, message: &str) -> Result<()> {
        let group = if kind == "Machine" {
            format!("{CORE}/v1beta2")
        } else {
            format!("{INFRASTRUCTURE}/v1alpha1")
        };
        let now = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second())?.to_string();
        let event = json!({
            "metadata": {"generateName": "page-"}, "reason": reason.chars().take(128).collect::<String>(), "message": message, "type": "Warning",
            "involvedObject": {"apiVersion": group, "kind": kind, "name": about, "namespace": self.namespace},
            "firstTimestamp": now, "lastTimestamp": now, "count": 1,
        });
        let events: Api<k8s_openapi::api::core::v1::Event> =
            Api::namespaced(self.cluster.client(), &self.namespace);
        events
            .create(&PostParams::default(), &serde_json::from_value(event)?)
            .await?;
        Ok(())
    }

    /// What the program that looks asks for.
    async fn please(&self, what: &str) -> Result<()> {
        let rolling = [
            "Available=True",
            "RollingOut=True/RollingOut/machines are replaced",
        ];
        match what {
            "begin the rollout" => {
                self.say(INFRASTRUCTURE, "EdgeMachine", "shop-b", &says(&["Ready=True"]))
                    .await?;
                self.say(CORE, "Cluster", "shop", &says(&["Available=True"]))
                    .await?;
                self.say(CORE, "MachineDeployment", "work", &with_replicas(&rolling, 1))
                    .await
            }
            "go on with it" => {
                self.say(CORE, "MachineDeployment", "work", &with_replicas(&rolling, 2))
                    .await
            }
            "end the rollout" => {
                self.say(CORE, "Machine", "shop-b", &says(&["Ready=True"]))
                    .await?;
                self.say(
                    CORE,
                    "MachineDeployment",
                    "work",
                    &with_replicas(&["Available=True", "RollingOut=False/NotRollingOut"], 3),
                )
                .await
            }
            "change something meanwhile" => {
                let said = with_replicas(&["Available=False/InvalidConfiguration/a selector is empty"], 3);
                self.say(CORE, "MachineDeployment", "work", &said).await
            }
            other => anyhow::bail!("nobody knows how to {other}"),
        }
    }

    /// `slipway ui` as this user, and the address that it prints.
    async fn page(&self, user: &str, rules: Vec<PolicyRule>) -> Result<(Child, String)> {
        self.cluster.client_with_rules(user, rules).await?;
        let kubeconfig = self
            .cluster
            .description()
            .directory
            .join(format!("{user}.kubeconfig"));
        std::fs::write(&kubeconfig, self.cluster.kubeconfig_as(user, None))?;
        let mut child = Command::new(env!("CARGO_BIN_EXE_slipway"))
            .arg("ui")
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .arg("--open=false")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let output = child.stdout.take().context("its output is piped")?;
        let address = BufReader::new(output)
            .lines()
            .next_line()
            .await?
            .context("it prints an address")?;
        ensure!(
            address.starts_with("http://127.0.0.1:") && address.contains("/#token="),
            "{address}"
        );
        Ok((child, address))
    }
}

/// `Ready=False/Reason/message`, each as a condition.
fn says(conditions: &[&str]) -> Value {
    let conditions: Vec<Value> = conditions
        .iter()
        .map(|text| {
            let (name, rest) = text.split_once('=').unwrap_or((text, "True"));
            let mut parts = rest.splitn(3, '/');
            let mut next = || parts.next().unwrap_or_default();
            json!({"type": name, "status": next(), "reason": next(), "message": next(), "lastTransitionTime": "2026-01-01T11:00:00Z"})
        })
        .collect();
    json!({"conditions": conditions})
}

fn with_replicas(conditions: &[&str], up_to_date: i64) -> Value {
    let mut status = says(conditions);
    status["replicas"] = json!(3);
    status["readyReplicas"] = json!(up_to_date);
    status["availableReplicas"] = json!(up_to_date);
    status["upToDateReplicas"] = json!(up_to_date);
    status
}

fn may_read(groups: &[&str], resources: &[&str]) -> PolicyRule {
    let all = |words: &[&str]| {
        words
            .iter()
            .map(|word| (*word).to_owned())
            .collect::<Vec<String>>()
    };
    PolicyRule {
        api_groups: Some(all(groups)),
        resources: Some(all(resources)),
        verbs: all(&["get", "list", "watch"]),
        ..PolicyRule::default()
    }
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
    let groups = [CORE, CONTROL_PLANE, INFRASTRUCTURE];
    let rules = vec![may_read(&groups, &["*"]), may_read(&[""], &["events"])];
    let (_all, all) = world.page(ALL, rules).await?;
    let (_few, few) = world.page(FEW, vec![may_read(&[CORE], &["clusters"])]).await?;
    let page = json!({"all": all, "few": few, "namespace": world.namespace, "canary": CANARY,
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
    // Whoever has the page open has asked for no Secret, and has written nothing.
    let of_ours = |request: &Request| [ALL, FEW].contains(&request.username());
    let asked = world.cluster.audit().requests(None, of_ours)?;
    ensure!(asked.len() > 10, "little was asked: {asked:?}");
    let too_much = asked
        .iter()
        .find(|request| request.is_write() || request.object.resource == "secrets");
    ensure!(too_much.is_none(), "{too_much:?}");
    Ok(())
}
