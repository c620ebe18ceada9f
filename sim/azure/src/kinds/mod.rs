//! The resource types the simulator knows, one table entry each: how a write is accepted, what the service fills
//! in, what it refuses and how the resource is shown. A type that is not listed is kept as it was sent.

mod authorization;
mod extension;
mod fleet;
mod identity;
mod network;
mod other;
mod resource_group;
mod storage;
mod vault;

pub use identity::{FEDERATED, IDENTITY};
use jiff::Timestamp;
pub use network::{check_ranges, interfaces_of};
pub use other::{WORKSPACE, workspace_keys};
use serde_json::{Map, Value};
pub use storage::{STORAGE_ACCOUNT, account_keys, regenerate_key};
use uuid::Uuid;

use crate::{
    aks,
    arm_id::ArmId,
    azure::Azure,
    error_response::ErrorResponse,
    operation::{Links, Style},
    store::{Resource, object_mut},
};

/// One resource type.
pub struct Kind {
    /// Type as the service spells it.
    pub path: &'static str,
    pub style: Style,
    pub create: Acceptance,
    pub update: Acceptance,
    /// A PUT that changes nothing.
    pub unchanged: Acceptance,
    pub delete: Acceptance,
    pub states: States,
    pub etag: EtagForm,
    /// Whether answers carry `properties.provisioningState`.
    pub shows_state: bool,
    /// Whether a top-level resource of this type has a location.
    pub located: bool,
    /// Whether a second write is refused while one runs.
    pub exclusive: bool,
    pub missing: Missing,
    pub parent_missing: Missing,
    /// Whether a missing parent is noticed before a missing resource group.
    pub parent_first: bool,
    /// Whether what its path names above it is no resource.
    pub orphan: bool,
    /// Whether a create answers with a Location that is the resource itself.
    pub links_itself: bool,
    /// Child resources that are also a list property of this type.
    pub embedded: &'static [(&'static str, &'static str)],
    /// Looks at a write, refuses it or fills it in.
    pub complete: fn(&mut Draft<'_>) -> Result<(), ErrorResponse>,
    /// Last touches to the document that is shown.
    pub present: fn(&Azure, &Resource, &View<'_>, &mut Map<String, Value>),
    /// What a finished create or update adds.
    pub finish: fn(&mut Resource),
}

/// How a write is answered.
#[derive(Clone, Copy)]
pub struct Acceptance {
    pub status: u16,
    pub links: Links,
    pub has_body: bool,
    /// Whether work goes on after the answer.
    pub runs: bool,
}

pub struct States {
    pub creating: &'static str,
    pub updating: &'static str,
    pub deleting: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum EtagForm {
    None,
    /// `W/"…"` as header and as `etag`.
    Network,
    /// `"…"` as `eTag` at the top.
    Top,
    /// As header and as `etag`, with nothing around it.
    Plain,
    /// AKS: plain, at the top of a cluster and in the properties of a pool, in some API versions.
    Aks,
}

/// Who says that something is not there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// ARM: `ResourceNotFound`, `x-ms-failure-cause: gateway`.
    Gateway,
    /// ARM: `ParentResourceNotFound`.
    Parent,
    /// The provider, with this code.
    Provider(&'static str),
    /// The AKS provider about a pool: not wrapped.
    AgentPool,
    /// The network provider: `NotFound` with empty details.
    Network,
    /// The extension provider, with empty additional info.
    Extension,
}

/// How a document is looked at.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub api: &'a str,
    pub now: Timestamp,
    /// The answer to the write itself, which echoes more than a later read.
    pub written: bool,
}

/// A write under way.
pub struct Draft<'a> {
    pub azure: &'a Azure,
    pub id: &'a ArmId,
    pub old: Option<&'a Resource>,
    pub now: Timestamp,
    pub body: Map<String, Value>,
    pub hidden: Map<String, Value>,
    pub verb: &'static str,
    pub state: Option<&'static str>,
    pub nodes: u64,
    /// Resources that come into being or change with this one.
    pub children: Vec<Child>,
}

/// A resource written along with another: id, type, document and the service's own facts.
pub type Child = (ArmId, &'static str, Map<String, Value>, Map<String, Value>);

impl Draft<'_> {
    pub fn properties(&mut self) -> &mut Map<String, Value> {
        object_mut(&mut self.body, "properties")
    }

    /// An id the service would make up: stable for this write.
    pub fn made_up(&self, what: &str) -> String {
        let seed = format!("{}/{what}/{}", self.id.key(), self.azure.state().counter);
        Uuid::new_v5(&Uuid::NAMESPACE_OID, seed.as_bytes()).to_string()
    }

    /// Sets a property the caller did not send.
    pub fn fill(&mut self, key: &str, value: Value) {
        self.properties().entry(key).or_insert(value);
    }

    /// Keeps what the service had set before, or sets it now.
    pub fn keep(&mut self, key: &str, value: impl FnOnce() -> Value) {
        if self.properties().contains_key(key) {
            return;
        }
        let kept = self
            .old
            .and_then(|old| old.properties().get(key).cloned())
            .unwrap_or_else(value);
        self.properties().insert(key.to_owned(), kept);
    }

    /// A property only the service sets: what was sent for it is ignored.
    pub fn own(&mut self, key: &str, value: impl FnOnce() -> Value) {
        let kept = self.old.and_then(|old| old.properties().get(key).cloned());
        self.properties()
            .insert(key.to_owned(), kept.unwrap_or_else(value));
    }
}

impl Kind {
    pub fn is(&self, path: &str) -> bool {
        self.path.eq_ignore_ascii_case(path)
    }

    pub fn short_name(&self) -> &'static str {
        self.path.rsplit('/').next().unwrap_or(self.path)
    }

    /// The document as an answer shows it.
    pub fn show(&self, azure: &Azure, resource: &Resource, view: &View<'_>) -> Value {
        let mut document = resource.document.clone();
        document.insert("id".to_owned(), resource.id.clone().into());
        document.insert("name".to_owned(), resource.name().into());
        document.insert("type".to_owned(), resource.kind.clone().into());
        if self.shows_state {
            object_mut(&mut document, "properties")
                .insert("provisioningState".to_owned(), resource.state.clone().into());
        }
        for (property, child) in self.embedded {
            let children: Vec<Value> = azure
                .state()
                .resources
                .of_kind(&resource.id.to_ascii_lowercase(), child)
                .into_iter()
                .map(|resource| find(child).show(azure, resource, view))
                .collect();
            object_mut(&mut document, "properties").insert((*property).to_owned(), children.into());
        }
        match self.etag {
            EtagForm::Network => {
                document.insert("etag".to_owned(), format!("W/\"{}\"", resource.etag).into());
            }
            EtagForm::Top => {
                document.insert("eTag".to_owned(), format!("\"{}\"", resource.etag).into());
            }
            EtagForm::Plain => {
                document.insert("etag".to_owned(), resource.etag.clone().into());
            }
            EtagForm::None | EtagForm::Aks => {}
        }
        (self.present)(azure, resource, view, &mut document);
        Value::Object(document)
    }
}

/// Answered at once.
pub const fn at_once(status: u16) -> Acceptance {
    Acceptance {
        status,
        links: Links {
            asynchronous: false,
            asynchronous_from: None,
            location: false,
            retry_after: None,
        },
        has_body: true,
        runs: false,
    }
}

/// Answered with a link to poll.
pub const fn polled(status: u16, asynchronous: bool, location: bool, retry_after: Option<u64>) -> Acceptance {
    Acceptance {
        status,
        links: Links {
            asynchronous,
            asynchronous_from: None,
            location,
            retry_after,
        },
        has_body: status != 202,
        runs: true,
    }
}

pub const fn without_body(mut acceptance: Acceptance) -> Acceptance {
    acceptance.has_body = false;
    acceptance
}

#[expect(clippy::unnecessary_wraps, reason = "one signature for every type")]
fn nothing(_: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    Ok(())
}

fn as_is(_: &Azure, _: &Resource, _: &View<'_>, _: &mut Map<String, Value>) {}

fn no_finish(_: &mut Resource) {}

/// What most types have in common; entries say what differs.
pub const PLAIN: Kind = Kind {
    path: "",
    style: Style::ContainerService,
    create: at_once(201),
    update: at_once(200),
    unchanged: at_once(200),
    delete: without_body(at_once(200)),
    states: States {
        creating: "Creating",
        updating: "Updating",
        deleting: "Deleting",
    },
    etag: EtagForm::None,
    shows_state: true,
    located: true,
    exclusive: false,
    missing: Missing::Gateway,
    parent_missing: Missing::Parent,
    parent_first: false,
    orphan: false,
    links_itself: false,
    embedded: &[],
    complete: nothing,
    present: as_is,
    finish: no_finish,
};

/// The entry for a type path, compared without case.
pub fn find(path: &str) -> &'static Kind {
    static UNKNOWN: Kind = PLAIN;
    tables()
        .into_iter()
        .flatten()
        .find(|kind| kind.is(path))
        .unwrap_or(&UNKNOWN)
}

/// The name the service uses for a type, or the caller's when it is not known.
pub fn canonical(path: &str) -> String {
    let kind = find(path);
    if kind.path.is_empty() {
        path.to_owned()
    } else {
        kind.path.to_owned()
    }
}

/// Every type with an entry of its own.
pub fn known() -> impl Iterator<Item = &'static str> {
    tables().into_iter().flatten().map(|kind| kind.path)
}

fn tables() -> [&'static [Kind]; 11] {
    [
        resource_group::KINDS,
        aks::KINDS,
        network::KINDS,
        network::DNS_KINDS,
        storage::KINDS,
        vault::KINDS,
        identity::KINDS,
        authorization::KINDS,
        fleet::KINDS,
        extension::KINDS,
        other::KINDS,
    ]
}

/// Who made a resource and when, as newer providers tell.
fn system_data(resource: &Resource) -> Value {
    serde_json::json!({
        "createdAt": resource.created.to_string(),
        "createdBy": "simulated",
        "createdByType": "Application",
        "lastModifiedAt": resource.changed.to_string(),
        "lastModifiedBy": "simulated",
        "lastModifiedByType": "Application",
    })
}
