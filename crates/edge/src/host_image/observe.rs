//! Every read of a HostImage: what each host of the namespace has for it, and how far its orders are.

use std::{collections::BTreeMap, sync::Arc};

use futures::{StreamExt, stream};
use kube::ResourceExt;
use slipway_agent_api::{Problem, proto::Operation};
use slipway_capi::frame::Subject;
use slipway_runtime::{Context, Informer, Scope};

use super::{
    api::HostImage,
    plan::{CacheFacts, Facts, HostFacts, fetches, owner, prefix},
};
use crate::{
    host::{api::EdgeHost, status as host_status},
    hosts::{HostAddress, Platform},
    selector,
};

/// How many hosts are asked at once.
const ASKED_AT_ONCE: usize = 16;

pub struct Observed {
    pub image: HostImage,
    pub facts: Facts,
    /// Where the hosts are, and their operations that are this job's.
    pub hosts: BTreeMap<String, (HostAddress, Vec<Operation>)>,
}

impl Observed {
    pub fn uid(&self) -> String {
        self.image.uid().unwrap_or_default()
    }

    pub fn owner(&self) -> String {
        let namespace = self.image.namespace().unwrap_or_default();
        owner(&namespace, &self.image.name_any(), &self.uid())
    }
}

pub async fn observe(subject: &Subject<HostImage>, platform: &Platform, context: &Context) -> Observed {
    let image = subject.object.as_ref();
    let hosts: Informer<EdgeHost> = context.informers.get(Scope::of_namespace(&context.settings));
    let mut hosts = hosts
        .index("namespace", |host| host.namespace().into_iter().collect())
        .get(&image.namespace().unwrap_or_default());
    hosts.sort_by_key(|host| host.name_any());
    let mut observed = Observed {
        image: image.clone(),
        facts: Facts {
            spec: image.spec.clone(),
            is_deleting: subject.is_deleting(),
            hosts: Vec::new(),
        },
        hosts: BTreeMap::new(),
    };
    let (uid, owner) = (observed.uid(), observed.owner());
    let asked: Vec<_> = hosts
        .iter()
        .map(|host| ask(Arc::clone(host), uid.clone(), owner.clone(), platform.clone()))
        .collect();
    let answers: Vec<_> = stream::iter(asked).buffered(ASKED_AT_ONCE).collect().await;
    for (host, answer) in hosts.iter().zip(answers) {
        let (cache, operations) = answer.map_or((None, Vec::new()), |(cache, own)| (Some(cache), own));
        let is_going = host.metadata.deletion_timestamp.is_some();
        observed.facts.hosts.push(HostFacts {
            name: host.name_any(),
            is_selected: !is_going && selector::selects(image.spec.host_selector.as_ref(), host.labels()),
            cache,
        });
        let known = (HostAddress::of(host), operations);
        observed.hosts.insert(host.name_any(), known);
    }
    observed
}

/// `None`: it does not answer. Who is known to be away is not asked: its EdgeHost tells when it is there again.
async fn ask(
    host: Arc<EdgeHost>,
    uid: String,
    owner: String,
    platform: Platform,
) -> Option<(CacheFacts, Vec<Operation>)> {
    if !host_status::is_reachable(&host) {
        return None;
    }
    let place = HostAddress::of(&host);
    let answers = async {
        let images = platform.hosts.images(&place).await?;
        let operations = platform.hosts.operations(&place).await?;
        Ok::<_, Problem>((images, operations))
    };
    let (images, mut operations) = answers.await.ok()?;
    let prefix = prefix(&uid);
    operations.retain(|operation| operation.id.starts_with(&prefix));
    let is_ours = |user: &slipway_agent_api::proto::ImageUser| user.kind == "pin" && user.name == owner;
    let facts = CacheFacts {
        pinned: images
            .into_iter()
            .filter(|image| image.users.iter().any(is_ours))
            .map(|image| image.digest)
            .collect(),
        orders: fetches(&uid, &operations),
    };
    Some((facts, operations))
}
