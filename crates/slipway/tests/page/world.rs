//! The world that the page shows: three clusters in a real API server, which change when they are asked to, and people who look at them.

use std::{path::Path, process::Stdio};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{authentication::v1::TokenRequest, core::v1::ServiceAccount, rbac::v1::PolicyRule};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use slipway_testbed::{Cluster, WorkloadCluster, audit::Request, install};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

pub const CORE: &str = "cluster.x-k8s.io";
pub const CONTROL_PLANE: &str = "controlplane.cluster.x-k8s.io";
pub const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";
pub const EDGE: &str = "edge.slipway.dev";
pub const KARPENTER: &str = "karpenter.sh";
pub const CANARY: &str = "canary-5b1e77";
/// What would run if text were markup.
const HOSTILE: &str = r#"<img src=x onerror="window.ran=1"><script>window.ran=1</script>"#;
/// Who may read what the guide says, and who may read Clusters alone.
pub const ALL: &str = "page-all";
pub const FEW: &str = "page-few";
/// Whose kubeconfig the page with sign-in is given: of that it may take no more than where the cluster is.
const SERVER: &str = "page-server";
/// Service accounts whose tokens sign in.
pub const VISITOR: &str = "system:serviceaccount:default:visitor";
pub const STRANGER: &str = "system:serviceaccount:default:stranger";

fn kinds() -> Vec<Value> {
    let kinds = [
        (CORE, "v1beta2", "Cluster"),
        (CORE, "v1beta2", "MachineDeployment"),
        (CORE, "v1beta2", "Machine"),
        (CONTROL_PLANE, "v1beta2", "KThreesControlPlane"),
        (INFRASTRUCTURE, "v1alpha1", "EdgeCluster"),
        (INFRASTRUCTURE, "v1alpha1", "EdgeMachine"),
        (EDGE, "v1alpha1", "ClusterUpgrade"),
        (EDGE, "v1alpha1", "NodeUpgrade"),
        (KARPENTER, "v1", "NodePool"),
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

pub struct World {
    pub cluster: Cluster,
    pub namespace: String,
}

impl World {
    pub async fn start() -> Result<Self> {
        let cluster = WorkloadCluster::builder()
            .name("page")
            .audit_everything_of(ALL)
            .audit_everything_of(FEW)
            .audit_everything_of(SERVER)
            .audit_everything_of(VISITOR)
            .audit_everything_of(STRANGER)
            .start()
            .await?;
        install::install(&cluster.client(), &kinds()).await?;
        let namespace = cluster.namespace("page").await?;
        let world = Self { cluster, namespace };
        world.shop().await?;
        world.others().await?;
        world.upgrade().await?;
        Ok(world)
    }

    fn api(&self, group: &str, kind: &str) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk(group, version_of(group), kind);
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
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version_of(group), kind));
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

    /// An upgrade whose waves follow each other, and a NodePool.
    async fn upgrade(&self) -> Result<()> {
        let mut status = says(&["Ready=False/Upgrading/the workers roll out"]);
        status["phase"] = json!("Workers");
        status["stop"] = json!("v1.35.2+k3s1");
        status["machines"] = json!(6);
        status["upToDate"] = json!(2);
        let spec = json!({"clusterName": "calm", "version": "v1.35.2+k3s1"});
        self.put((EDGE, "ClusterUpgrade"), "calm", "calm", &spec, &status, None)
            .await?;
        let nodes = [
            ("calm-1", "Done", "Ready=True/Done/"),
            ("calm-2", "Done", "Ready=True/Done/"),
            (
                "calm-3",
                "Verifying",
                "Ready=False/Verifying/waiting for the node",
            ),
            (
                "calm-4",
                "Draining",
                "Ready=False/Draining/1 pod stays: shop/cart, by its budget",
            ),
            (
                "calm-5",
                "Pending",
                "Ready=False/WaitingForWave/wave rest comes after wave first",
            ),
            (
                "calm-6",
                "Pending",
                "Ready=False/WaitingForWave/wave rest comes after wave first",
            ),
        ];
        for (machine, phase, says_) in nodes {
            let mut status = says(&[says_]);
            status["phase"] = json!(phase);
            let spec = json!({"machineName": machine, "hostName": machine, "version": "v1.35.2+k3s1"});
            self.put((EDGE, "NodeUpgrade"), machine, "calm", &spec, &status, None)
                .await?;
        }
        let spec = json!({"template": {"spec": {"nodeClassRef": {"name": "sizes"}}}});
        self.put(
            (KARPENTER, "NodePool"),
            "general",
            "calm",
            &spec,
            &says(&["Ready=True"]),
            None,
        )
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
    pub async fn please(&self, what: &str) -> Result<()> {
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
    pub async fn page(&self, user: &str, rules: Vec<PolicyRule>) -> Result<(Child, String)> {
        self.cluster.client_with_rules(user, rules).await?;
        let (child, address) = self.ui(user, &["--open=false"]).await?;
        ensure!(
            address.starts_with("http://127.0.0.1:") && address.contains("/#token="),
            "{address}"
        );
        Ok((child, address))
    }

    /// The page with which everybody signs in.
    pub async fn page_for_many(&self) -> Result<(Child, String)> {
        let arguments = ["--sign-in", "--bind-address=127.0.0.1:0"];
        let (child, address) = self.ui(SERVER, &arguments).await?;
        ensure!(address.starts_with("https://127.0.0.1:"), "{address}");
        Ok((child, address))
    }

    /// A service account that may look at fleets as the chart's role has it, or at nothing; and a token of it.
    pub async fn account(&self, user: &str, may_look: bool) -> Result<String> {
        let name = user.rsplit(':').next().unwrap_or_default();
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "default"}});
        let mut objects = vec![account];
        if may_look {
            let role = view_role()?;
            objects.push(json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role["metadata"]["name"]},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
            }));
            objects.push(role);
        }
        install::install(&self.cluster.client(), &objects).await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(self.cluster.client(), "default");
        let asked = accounts
            .create_token_request(name, &PostParams::default(), &TokenRequest::default())
            .await?;
        Ok(asked.status.context("a token")?.token)
    }

    async fn ui(&self, user: &str, arguments: &[&str]) -> Result<(Child, String)> {
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
            .args(arguments)
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
        Ok((child, address))
    }
}

/// The role that the chart installs with the page.
fn view_role() -> Result<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/helm/slipway/templates/page.yaml");
    let text = std::fs::read_to_string(path)?;
    let role = text
        .split("---\n")
        .find(|document| document.contains("kind: ClusterRole\n"));
    let mut role = install::parse(role.context("the chart has the role")?)?;
    Ok(role.remove(0))
}

fn version_of(group: &str) -> &'static str {
    match group {
        INFRASTRUCTURE | EDGE => "v1alpha1",
        KARPENTER => "v1",
        _ => "v1beta2",
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

pub fn may_read(groups: &[&str], resources: &[&str]) -> PolicyRule {
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

impl World {
    /// Whoever has the page open has asked for no Secret, and has written nothing; and the page has asked for nothing itself.
    pub fn nothing_but_looks(&self, users: &[&str]) -> Result<()> {
        let of = |users: &[&str]| -> Result<Vec<Request>> {
            let is_of = |request: &Request| users.contains(&request.username());
            Ok(self.cluster.audit().requests(None, is_of)?)
        };
        let asked = of(users)?;
        ensure!(
            users.is_empty() || asked.len() > 10,
            "little was asked: {asked:?}"
        );
        // Somebody who asks for a plan asks for a token that is good for that.
        let is_too_much = |request: &&Request| {
            let resource = request.object.resource.as_str();
            resource == "secrets" || request.is_write() && resource != "serviceaccounts"
        };
        let too_much = asked.iter().find(is_too_much);
        ensure!(too_much.is_none(), "{too_much:?}");
        let own = of(&[SERVER])?;
        ensure!(own.is_empty(), "the page asked for itself: {own:?}");
        Ok(())
    }
}
