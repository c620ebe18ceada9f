//! A manager that was installed into a cluster as a Deployment and runs as a process on this machine: with the
//! container's own arguments, variables, volumes and rights. Does what others do for a pod in a real cluster: cert-manager
//! (certificates and whom to trust), the Service (the way to the manager) and the kubelet (volumes of secrets and tokens).

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use k8s_openapi::{
    ByteString,
    api::{
        authentication::v1::{TokenRequest, TokenRequestSpec},
        core::v1::{Secret, Service, ServiceAccount},
    },
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};

use crate::{Cluster, install::FIELD_MANAGER};

/// How cert-manager is told which certificate's CA an object trusts.
const INJECT: &str = "cert-manager.io/inject-ca-from";

/// Kinds that name somebody to call.
const CALLERS: &[(&str, &str)] = &[
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
    ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"),
    (
        "admissionregistration.k8s.io/v1",
        "ValidatingWebhookConfiguration",
    ),
];

#[derive(Debug, thiserror::Error)]
pub enum InstalledError {
    #[error("{doing}: {source}")]
    Kubernetes {
        doing: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("{what} is not as a manager's package has it: {detail}")]
    Unexpected { what: String, detail: String },
    #[error("making the volume {path}: {source}")]
    Volume { path: PathBuf, source: io::Error },
    #[error("signing for {name}: {source}")]
    Sign { name: String, source: rcgen::Error },
}

/// What the manager's process is started with.
#[derive(Clone, Debug)]
pub struct Installed {
    /// The container's arguments, and those that differ outside a pod: kubeconfig, webhook address and certificate.
    pub arguments: Vec<String>,
    /// The container's variables, with the pod's fields filled in.
    pub environment: BTreeMap<String, String>,
    /// Where each volume lies. Arguments and variables that name a path in one name that place.
    pub volumes: BTreeMap<String, PathBuf>,
}

/// Makes the one Deployment of a namespace ready to run here: its webhooks will be called on `port` of this machine, its
/// files lie below `directory`.
pub async fn prepare(
    cluster: &Cluster,
    namespace: &str,
    directory: &Path,
    port: u16,
) -> Result<Installed, InstalledError> {
    let client = cluster.client();
    let deployment = the_deployment(&client, namespace).await?;
    let pod = &deployment.data["spec"]["template"]["spec"];
    certify(cluster, &client, namespace).await?;
    route(&client, namespace, port).await?;

    let unexpected = |detail: &str| InstalledError::Unexpected {
        what: format!("Deployment {namespace}/{}", deployment.name_any()),
        detail: detail.to_owned(),
    };
    let containers = pod["containers"]
        .as_array()
        .ok_or_else(|| unexpected("no containers"))?;
    let manager = containers
        .iter()
        .find(|container| container["name"] == "manager")
        .ok_or_else(|| unexpected("no container called manager"))?;
    let mut arguments = texts(&manager["args"]);
    let account = pod["serviceAccountName"].as_str().unwrap_or("default");
    let kubeconfig = directory.join("account.kubeconfig");
    let user = format!("system:serviceaccount:{namespace}:{account}");
    let group = format!("system:serviceaccounts:{namespace}");
    write(&kubeconfig, cluster.kubeconfig_as(&user, Some(&group)).as_bytes())?;
    arguments.push(format!("--kubeconfig={}", kubeconfig.display()));

    let mut volumes = BTreeMap::new();
    for volume in pod["volumes"].as_array().into_iter().flatten() {
        let name = volume["name"].as_str().unwrap_or_default();
        let path = directory.join(name);
        if let Some(secret) = volume["secret"]["secretName"].as_str() {
            mount(&client, namespace, secret, &path).await?;
        } else if let Some(sources) = volume["projected"]["sources"].as_array() {
            project(&client, namespace, account, sources, &path).await?;
        } else {
            return Err(unexpected("a volume that is neither a secret nor projected"));
        }
        volumes.insert(name.to_owned(), path);
    }
    let here = |text: &str| at_home(text, &manager["volumeMounts"], &volumes);
    arguments = arguments.iter().map(|argument| here(argument)).collect();
    if let Some(path) = volumes.get("cert") {
        arguments.extend([
            "--webhook-host=127.0.0.1".to_owned(),
            format!("--webhook-port={port}"),
            format!("--webhook-cert-dir={}", path.display()),
        ]);
    }
    let environment = manager["env"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|variable| {
            let value = match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
                Some("metadata.namespace") => namespace.to_owned(),
                Some("metadata.name" | "metadata.uid") => deployment.name_any(),
                _ => here(variable["value"].as_str()?),
            };
            Some((variable["name"].as_str()?.to_owned(), value))
        })
        .collect();
    Ok(Installed {
        arguments,
        environment,
        volumes,
    })
}

/// Writes files the way the kubelet's atomic writer lays out a secret volume, over an older state if there is one:
/// `file -> ..data/file`, `..data -> ..<time>`, renewed by renaming a new link over `..data`.
pub fn write_volume(path: &Path, files: &BTreeMap<String, Vec<u8>>) -> Result<(), InstalledError> {
    let failed = |source| InstalledError::Volume {
        path: path.to_owned(),
        source,
    };
    let write_all = || -> io::Result<()> {
        fs::create_dir_all(path)?;
        let data = path.join("..data");
        let old = fs::read_link(&data).ok();
        let number = old
            .as_deref()
            .and_then(|old| old.to_str()?.strip_prefix("..")?.parse::<u64>().ok())
            .map_or(1, |number| number + 1);
        let new = format!("..{number}");
        fs::create_dir(path.join(&new))?;
        for (name, content) in files {
            fs::write(path.join(&new).join(name), content)?;
        }
        symlink(&new, path.join("..data_tmp"))?;
        fs::rename(path.join("..data_tmp"), &data)?;
        for name in files.keys() {
            let link = path.join(name);
            if fs::symlink_metadata(&link).is_err() {
                symlink(Path::new("..data").join(name), link)?;
            }
        }
        if let Some(old) = old {
            fs::remove_dir_all(path.join(old))?;
        }
        Ok(())
    };
    write_all().map_err(failed)
}

async fn the_deployment(client: &Client, namespace: &str) -> Result<DynamicObject, InstalledError> {
    let mut found = list(client, "apps/v1", "Deployment", Some(namespace)).await?;
    let (Some(deployment), true) = (found.pop(), found.is_empty()) else {
        return Err(InstalledError::Unexpected {
            what: format!("namespace {namespace}"),
            detail: format!("{} Deployments", found.len()),
        });
    };
    Ok(deployment)
}

/// What cert-manager does: a Secret for each Certificate, and its CA in whatever asks for it.
async fn certify(cluster: &Cluster, client: &Client, namespace: &str) -> Result<(), InstalledError> {
    let ca = &cluster.ca().pair().certificate;
    for certificate in list(client, "cert-manager.io/v1", "Certificate", Some(namespace)).await? {
        let name = certificate.name_any();
        let spec = &certificate.data["spec"];
        let pair = cluster
            .ca()
            .server_called(texts(&spec["dnsNames"]))
            .map_err(|source| InstalledError::Sign {
                name: name.clone(),
                source,
            })?;
        let secret = spec["secretName"].as_str().unwrap_or_default();
        let manifest = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": secret, "annotations": {"cert-manager.io/certificate-name": name}},
            "type": "kubernetes.io/tls",
            "data": {
                "ca.crt": BASE64_STANDARD.encode(ca),
                "tls.crt": BASE64_STANDARD.encode(&pair.certificate),
                "tls.key": BASE64_STANDARD.encode(&pair.key),
            },
        });
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let doing = format!("writing the Secret of Certificate {namespace}/{name}");
        secrets
            .patch(
                secret,
                &PatchParams::apply(FIELD_MANAGER).force(),
                &Patch::Apply(&manifest),
            )
            .await
            .map_err(|source| kubernetes(&doing, source))?;
        let desired = format!("{namespace}/{name}");
        each_caller(client, |object| {
            (object.annotations().get(INJECT) == Some(&desired)).then(|| {
                patched(object, |config| {
                    config["caBundle"] = json!(BASE64_STANDARD.encode(ca));
                })
            })
        })
        .await?;
    }
    Ok(())
}

/// What the Service does: calls to it reach a port of this machine. It becomes a name for this machine, and the port goes
/// where the apiserver looks for it; the name in the certificate stays the Service's.
async fn route(client: &Client, namespace: &str, port: u16) -> Result<(), InstalledError> {
    let services: Api<Service> = Api::namespaced(client.clone(), namespace);
    let found = services
        .list(&ListParams::default())
        .await
        .map_err(|source| kubernetes("listing Services", source))?;
    for service in found {
        let name = service.name_any();
        let here = json!({"spec": {
            "type": "ExternalName",
            "externalName": "localhost",
            "clusterIP": null,
            "clusterIPs": null,
        }});
        services
            .patch(&name, &PatchParams::default(), &Patch::Merge(&here))
            .await
            .map_err(|source| kubernetes(&format!("pointing Service {namespace}/{name} here"), source))?;
        each_caller(client, |object| {
            let mut calls = false;
            let patch = patched(object, |config| {
                if config["service"]["name"] == json!(name)
                    && config["service"]["namespace"] == json!(namespace)
                {
                    calls = true;
                    config["service"]["port"] = json!(port);
                }
            });
            calls.then_some(patch)
        })
        .await?;
    }
    Ok(())
}

/// Offers every object that names somebody to call, and writes the patch it is answered with.
async fn each_caller(
    client: &Client,
    change: impl Fn(&DynamicObject) -> Option<Value>,
) -> Result<(), InstalledError> {
    for (api_version, kind) in CALLERS {
        for object in list(client, api_version, kind, None).await? {
            let Some(patch) = change(&object) else { continue };
            let name = object.name_any();
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource(api_version, kind));
            api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
                .await
                .map_err(|source| kubernetes(&format!("patching {kind} {name}"), source))?;
        }
    }
    Ok(())
}

/// A merge patch with `change` made to every client configuration of an object.
fn patched(object: &DynamicObject, mut change: impl FnMut(&mut Value)) -> Value {
    if let Some(conversion) = object.data["spec"]["conversion"]["webhook"].as_object() {
        let mut config = conversion.get("clientConfig").cloned().unwrap_or_default();
        change(&mut config);
        return json!({"spec": {"conversion": {"webhook": {"clientConfig": config}}}});
    }
    let mut webhooks = object.data["webhooks"].clone();
    for webhook in webhooks.as_array_mut().into_iter().flatten() {
        change(&mut webhook["clientConfig"]);
    }
    json!({"webhooks": webhooks})
}

async fn mount(client: &Client, namespace: &str, secret: &str, path: &Path) -> Result<(), InstalledError> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let found = secrets.get(secret).await.map_err(|source| {
        kubernetes(
            &format!("reading the Secret {namespace}/{secret} to mount"),
            source,
        )
    })?;
    let files = found
        .data
        .unwrap_or_default()
        .into_iter()
        .map(|(name, ByteString(content))| (name, content))
        .collect();
    write_volume(path, &files)
}

/// What the kubelet does for a projected volume whose sources are tokens of the pod's service account.
async fn project(
    client: &Client,
    namespace: &str,
    account: &str,
    sources: &[Value],
    path: &Path,
) -> Result<(), InstalledError> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let mut files = BTreeMap::new();
    for source in sources {
        let token = &source["serviceAccountToken"];
        let (Some(audience), Some(file)) = (token["audience"].as_str(), token["path"].as_str()) else {
            return Err(InstalledError::Unexpected {
                what: format!("a projected volume of {namespace}"),
                detail: format!("{source} is no token of a service account"),
            });
        };
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: vec![audience.to_owned()],
                expiration_seconds: token["expirationSeconds"].as_i64(),
                ..TokenRequestSpec::default()
            },
            ..TokenRequest::default()
        };
        let doing = format!("asking for a token of ServiceAccount {namespace}/{account}");
        let answer = accounts
            .create_token_request(account, &PostParams::default(), &request)
            .await
            .map_err(|source| kubernetes(&doing, source))?;
        let text = answer.status.map(|status| status.token).unwrap_or_default();
        files.insert(file.to_owned(), text.into_bytes());
    }
    write_volume(path, &files)
}

/// A text of the container, where paths below a mounted volume become paths of this machine.
fn at_home(text: &str, mounts: &Value, volumes: &BTreeMap<String, PathBuf>) -> String {
    let mut text = text.to_owned();
    for mount in mounts.as_array().into_iter().flatten() {
        let place = mount["name"].as_str().and_then(|name| volumes.get(name));
        if let (Some(path), Some(place)) = (mount["mountPath"].as_str(), place) {
            text = text.replace(path.trim_end_matches('/'), &place.display().to_string());
        }
    }
    text
}

async fn list(
    client: &Client,
    api_version: &str,
    kind: &str,
    namespace: Option<&str>,
) -> Result<Vec<DynamicObject>, InstalledError> {
    let resource = resource(api_version, kind);
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let found = api
        .list(&ListParams::default())
        .await
        .map_err(|source| kubernetes(&format!("listing {kind}s"), source))?;
    Ok(found.items)
}

fn resource(api_version: &str, kind: &str) -> ApiResource {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

fn kubernetes(doing: &str, source: kube::Error) -> InstalledError {
    InstalledError::Kubernetes {
        doing: doing.to_owned(),
        source: Box::new(source),
    }
}

fn texts(value: &Value) -> Vec<String> {
    value
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|text| text.as_str().map(str::to_owned))
        .collect()
}

fn write(path: &Path, content: &[u8]) -> Result<(), InstalledError> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent)
        .and_then(|()| fs::write(path, content))
        .map_err(|source| InstalledError::Volume {
            path: path.to_owned(),
            source,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_renewed_by_one_rename() {
        let folder = tempfile::tempdir().expect("a temporary directory can be made");
        let volume = folder.path().join("cert");
        let files = |text: &str| BTreeMap::from([("tls.crt".to_owned(), text.as_bytes().to_vec())]);
        for text in ["one", "two", "three"] {
            write_volume(&volume, &files(text)).expect("it can be written");
            assert_eq!(fs::read_to_string(volume.join("tls.crt")).expect("a link"), text);
        }
        assert_eq!(
            fs::read_link(volume.join("tls.crt")).expect("a link"),
            Path::new("..data/tls.crt")
        );
        assert_eq!(
            fs::read_link(volume.join("..data")).expect("a link"),
            Path::new("..3")
        );
        assert!(!volume.join("..2").exists(), "what nobody reads any more is gone");
    }

    #[test]
    fn paths_in_a_mounted_volume_become_paths_of_this_machine() {
        let mounts = json!([{"name": "token", "mountPath": "/var/run/tokens/"}]);
        let volumes = BTreeMap::from([("token".to_owned(), PathBuf::from("/tmp/here"))]);
        let here = |text| at_home(text, &mounts, &volumes);
        assert_eq!(here("--file=/var/run/tokens/one"), "--file=/tmp/here/one");
        assert_eq!(here("--other=/var/run/secrets"), "--other=/var/run/secrets");
    }

    #[test]
    fn every_client_configuration_is_changed_and_nothing_else() {
        let object = |value: Value| serde_json::from_value::<DynamicObject>(value).expect("an object");
        let set = |config: &mut Value| config["caBundle"] = json!("Q0E=");
        let crd = object(
            json!({"metadata": {"name": "a"}, "spec": {"conversion": {"webhook": {
            "clientConfig": {"service": {"name": "s"}}, "conversionReviewVersions": ["v1"]}}}}),
        );
        assert_eq!(
            patched(&crd, set),
            json!({"spec": {"conversion": {"webhook": {"clientConfig":
                {"service": {"name": "s"}, "caBundle": "Q0E="}}}}})
        );
        let webhooks = object(json!({"metadata": {"name": "a"}, "webhooks": [
            {"name": "one", "clientConfig": {"service": {"name": "s"}}}]}));
        assert_eq!(
            patched(&webhooks, set),
            json!({"webhooks": [{"name": "one", "clientConfig": {"service": {"name": "s"}, "caBundle": "Q0E="}}]})
        );
    }
}
