//! Hosts that are virtual machines of MOC. The gallery and disks of MOC are their images and slots; bootstrap data and Kubernetes are the
//! guest's, whose agent is reached by running a command in it. What MOC itself is to do for a host is remembered in a tag of the machine
//! ([`record`]) and done a step at a time, whenever the host is asked ([`plan`]): whoever asks next goes on with it.

pub mod clouds;
pub mod guest;
pub mod plan;
pub mod record;
mod visit;

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use parking_lot::Mutex;
use slipway_agent_api::{
    Class, Problem,
    client::has_ended,
    order::Order,
    proto::{
        self, CancelOperationRequest, GetOperationRequest, ListImagesRequest, Operation, StartRequest,
        local_answer::Answer, local_call::Call,
    },
};
use slipway_moc::session::Endpoint;
use slipway_runtime::Clock;

use self::{
    clouds::Clouds,
    plan::{GuestFacts, accept, fence, is_of_the_cloud},
    record::{State, Work, operation},
    visit::{Running, Visit},
};
use super::{HostAddress, Hosts};

/// Where a virtual machine is, and how it is had at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MocPlace {
    /// Of the Secret.
    pub namespace: String,
    pub secret: String,
    pub cloud: Endpoint,
    pub location: String,
    pub group: String,
    pub machine: String,
    /// Of disks; MOC chooses one where it is absent.
    pub container: Option<String>,
    /// Where images are had from that are not in the gallery, with `{digest}` in it.
    pub image_url: Option<String>,
}

/// What this process knows of a host beside its record: calls that go on, and what holds up an operation.
#[derive(Default)]
struct Known {
    running: BTreeMap<String, Running>,
    trouble: BTreeMap<String, String>,
}

pub struct MocHosts {
    clouds: Arc<dyn Clouds>,
    clock: Clock,
    /// One at a time works on a host.
    hosts: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<Known>>>>,
}

/// Verbs of guests that can run beside an order of MOC.
const BESIDE: [&str; 8] = [
    "ensure",
    "pin",
    "unpin",
    "evict",
    "export",
    "import",
    "hold_address",
    "release_address",
];

impl MocHosts {
    pub fn new(clouds: Arc<dyn Clouds>, clock: Clock) -> Self {
        Self {
            clouds,
            clock,
            hosts: Mutex::default(),
        }
    }

    fn known(&self, name: &str) -> Arc<tokio::sync::Mutex<Known>> {
        self.hosts.lock().entry(name.to_owned()).or_default().clone()
    }

    fn now(&self) -> i64 {
        self.clock.now().as_millisecond()
    }

    /// Reads the machine and does what can be done for it.
    async fn visit<'a>(&self, host: &'a HostAddress, known: &'a mut Known) -> Result<Visit<'a>, Problem> {
        let Some(place) = &host.moc else {
            return Err(Problem::new(
                Class::Terminal,
                "NotOfMoc",
                format!("host {} is not a virtual machine of MOC", host.name),
            ));
        };
        let cloud = self.clouds.cloud(place, self.clock.now()).await?;
        let mut visit = match Visit::begin(cloud, host, place, known).await {
            Ok(visit) => visit,
            Err(problem) => {
                if problem.class == Class::Denied {
                    self.clouds.refused(place);
                }
                return Err(problem);
            }
        };
        visit.drive(&self.clock).await;
        Ok(visit)
    }

    async fn guest_facts(visit: &mut Visit<'_>, order: &Order) -> Result<GuestFacts, Problem> {
        let nature = order.nature();
        if !nature.exclusive && !nature.disturbs {
            return Ok(GuestFacts::default());
        }
        let is_rollback = matches!(order.verb, proto::start_request::Verb::Rollback(_));
        let host = match visit.guest_host().await {
            Ok(host) => host,
            // The way back is open whatever the guest says.
            Err(_) if is_rollback => return Ok(GuestFacts::default()),
            Err(problem) => return Err(problem),
        };
        let mut facts = GuestFacts {
            generation: host.generation,
            maintenance: host
                .maintenance
                .map(|held| format!("{} ({})", held.reason, held.by)),
            busy_with: None,
        };
        if !host.running_operations.is_empty() {
            let operations = visit.guest_operations().await?;
            facts.busy_with = operations
                .into_iter()
                .find(|operation| !has_ended(operation) && !BESIDE.contains(&operation.verb.as_str()))
                .map(|operation| operation.id);
        }
        Ok(facts)
    }
}

#[async_trait]
impl Hosts for MocHosts {
    async fn inventory(&self, host: &HostAddress) -> Result<proto::Host, Problem> {
        let known = self.known(&host.name);
        let mut known = known.lock().await;
        let mut visit = self.visit(host, &mut known).await?;
        let mut found = visit.guest_host().await?;
        record::show(&visit.record, visit.os_disk(), &mut found);
        Ok(found)
    }

    async fn operation(&self, host: &HostAddress, id: &str) -> Result<Option<Operation>, Problem> {
        let known = self.known(&host.name);
        let mut known = known.lock().await;
        let mut visit = self.visit(host, &mut known).await?;
        if let Some(found) = visit.operation(id) {
            return Ok(Some(found));
        }
        let request = GetOperationRequest {
            operation_id: id.to_owned(),
        };
        match visit.ask(Call::GetOperation(request)).await {
            Ok(Answer::Operation(operation)) => Ok(Some(operation)),
            Ok(_) => Err(guest::odd()),
            Err(problem) if problem.reason == "UnknownOperation" => Ok(None),
            Err(problem) => Err(problem),
        }
    }

    async fn operations(&self, host: &HostAddress) -> Result<Vec<Operation>, Problem> {
        let known = self.known(&host.name);
        let mut known = known.lock().await;
        let mut visit = self.visit(host, &mut known).await?;
        let mut all = visit.guest_operations().await?;
        all.extend(visit.operations());
        Ok(all)
    }

    async fn images(&self, host: &HostAddress) -> Result<Vec<proto::Image>, Problem> {
        let known = self.known(&host.name);
        let mut known = known.lock().await;
        let mut visit = self.visit(host, &mut known).await?;
        match visit.ask(Call::ListImages(ListImagesRequest {})).await? {
            Answer::Images(listed) => {
                let mut images = listed.images;
                images.extend(record::images(&visit.record));
                Ok(images)
            }
            _ => Err(guest::odd()),
        }
    }

    async fn start(&self, host: &HostAddress, request: StartRequest) -> Result<Operation, Problem> {
        let order = Order::check(request.clone())?;
        if order.host != host.name {
            return Err(Problem::new(
                Class::Terminal,
                "OtherHost",
                format!("the order is for host {}, and this is {}", order.host, host.name),
            ));
        }
        let known = self.known(&host.name);
        let mut known = known.lock().await;
        let mut visit = self.visit(host, &mut known).await?;
        // Orders are given to whoever has the highest number, the guest's or MOC's.
        let generation = order.generation;
        if !is_of_the_cloud(&order.verb, &visit.record) && visit.operation(&order.id).is_none() {
            fence(&visit.record, generation, 0)?;
            if let (true, Some(other)) = (order.nature().exclusive, visit.record.busy_with()) {
                let message = format!("operation {other} runs");
                return Err(Problem::new(Class::Conflict, "Busy", message));
            }
            return match visit.ask(Call::Start(request)).await? {
                Answer::Operation(operation) => Ok(operation),
                _ => Err(guest::odd()),
            };
        }
        let guest = Self::guest_facts(&mut visit, &order).await?;
        let facts = visit.facts().await?;
        let next = accept(&visit.record, &order, &guest, &facts, self.now())?;
        if next != visit.record {
            visit.write(next, None).await?;
            visit.drive(&self.clock).await;
        }
        visit.operation(&order.id).ok_or_else(guest::odd)
    }

    async fn cancel(&self, host: &HostAddress, id: &str, generation: u64) -> Result<Operation, Problem> {
        let known = self.known(&host.name);
        let mut known = known.lock().await;
        let mut visit = self.visit(host, &mut known).await?;
        fence(&visit.record, generation, 0)?;
        let Some(kept) = visit.record.operations.get(id) else {
            let request = CancelOperationRequest {
                operation_id: id.to_owned(),
                generation,
            };
            return match visit.ask(Call::CancelOperation(request)).await? {
                Answer::Operation(operation) => Ok(operation),
                _ => Err(guest::odd()),
            };
        };
        match (&kept.state, &kept.work) {
            (State::Running, Some(Work::Ensure { .. })) => {
                let mut next = visit.record.clone();
                next.generation = next.generation.max(generation);
                next.end(id, State::Cancelled, "cancelled", self.now());
                visit.write(next, None).await?;
            }
            (State::Running, _) => {
                let message = format!(
                    "{} cannot be cut off: order a rollback when it has ended",
                    kept.verb
                );
                return Err(Problem::new(Class::Conflict, "NotCancelled", message));
            }
            _ => {}
        }
        visit.operation(id).ok_or_else(guest::odd)
    }

    fn forget(&self, name: &str) {
        self.hosts.lock().remove(name);
    }
}

/// What holds up an operation now, as this process knows it.
fn shown(id: &str, kept: &record::StoredOperation, known: &Known) -> Operation {
    operation(id, kept, known.trouble.get(id).map(String::as_str))
}
