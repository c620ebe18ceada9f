//! Room for pods that are not there: what a plan says of it, apart from what it says of pods that are. Pure.

use std::{collections::BTreeMap, fmt};

use slipway_packing::model::{NewClaim, Plan as Packed, Pod};

/// What has become of the pods of one buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// So many have room on nodes that are ready.
    pub stands: usize,
    /// On nodes that are on their way, or being made now.
    pub coming: usize,
    /// Nowhere.
    pub refused: usize,
    /// Why, of the first of them.
    pub why: String,
}

impl Room {
    pub fn wanted(&self) -> usize {
        self.stands + self.coming + self.refused
    }
}

impl fmt::Display for Room {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Room {
            stands,
            coming,
            refused,
            why,
        } = self;
        write!(
            formatter,
            "there is room for {stands} of {} pods, and for {coming} on nodes that are on their way",
            self.wanted()
        )?;
        if *refused > 0 {
            write!(formatter, "; none can be had for {refused}: {why}")?;
        }
        Ok(())
    }
}

/// Whether a pod is more than a place that is kept: the names of those have a space, which no pod's name can have.
pub fn is_there(pod: &Pod) -> bool {
    !pod.metadata.name.contains(' ')
}

/// Rooms by the `namespace/name` of their buffer.
pub type Rooms = BTreeMap<String, Room>;

/// Counts the pods that are not there, and takes them out of what is told.
pub struct Counter<'a> {
    /// The buffer of each, by its reference.
    buffers: BTreeMap<String, &'a str>,
    pub rooms: Rooms,
}

impl<'a> Counter<'a> {
    /// `buffer_of` says whose a pod is.
    pub fn new(pods: &'a [Pod], buffer_of: impl Fn(&'a Pod) -> Option<&'a str>) -> Self {
        let named = |pod: &'a Pod| Some((pod.metadata.reference(), buffer_of(pod)?));
        Counter {
            buffers: pods.iter().filter_map(named).collect(),
            rooms: Rooms::new(),
        }
    }

    fn room(&mut self, pod: &str) -> Option<&mut Room> {
        let buffer = self.buffers.get(pod)?;
        Some(self.rooms.entry((*buffer).to_owned()).or_default())
    }

    /// Whose a pod is, if it is one of these.
    pub fn owner(&self, pod: &str) -> Option<&'a str> {
        self.buffers.get(pod).copied()
    }

    /// Whether a pod is one of these. It has no room, for this reason.
    pub fn refuse(&mut self, pod: &str, why: &str) -> bool {
        let Some(room) = self.room(pod) else { return false };
        room.refused += 1;
        if room.why.is_empty() {
            why.clone_into(&mut room.why);
        }
        true
    }

    /// They have room on a node that is being made.
    pub fn make(&mut self, claim: &NewClaim) {
        for pod in &claim.pods {
            if let Some(room) = self.room(pod) {
                room.coming += 1;
            }
        }
    }

    /// Takes them out of the nodes that stand, and out of those who are told that there is nothing for them.
    pub fn take_out(&mut self, packed: &mut Packed) {
        for node in &mut packed.existing {
            let initialized = node.initialized;
            node.pods.retain(|pod| match self.room(pod) {
                Some(room) if initialized => {
                    room.stands += 1;
                    false
                }
                Some(room) => {
                    room.coming += 1;
                    false
                }
                None => true,
            });
        }
        packed.existing.retain(|node| !node.pods.is_empty());
        packed
            .unschedulable
            .retain(|refusal| !self.refuse(&refusal.pod, &refusal.message));
    }
}
