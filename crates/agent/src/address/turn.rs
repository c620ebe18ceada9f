//! Whether this host may hold the address of its cluster now: pure, and on this host's own clock alone. Two hosts never hold it at once,
//! whatever the network does and however far their clocks are apart:
//!
//! - Who holds the lease holds the address for [`HOLD`] from the moment its last write that succeeded was *sent*, and no longer.
//! - Who wants it waits until the lease was the same for [`LEASE`] since it was *seen* so, which is later than that write was sent. The
//!   difference is for clocks that run at different speeds and for the time it takes to drop the address.
//! - Before there is a lease the first server holds it without one, because there is nobody else: no other host ever makes the lease. From
//!   the first try to make it on, the first server needs it like everybody else, also when it never hears what came of that.

use serde::{Deserialize, Serialize};

/// Milliseconds, as this host's clock counts them since it was started, sleep included.
pub type Millis = i64;

/// How long a lease that does not change is respected.
pub const LEASE: Millis = 15_000;
/// How long the address is held after a write.
pub const HOLD: Millis = 9_000;
/// Whoever looks less often than this has not seen what was in between.
const LOOKS: Millis = 6_000;

/// On disk: it outlasts restarts of agent and machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// The first server of a cluster that has no lease yet.
    First,
    /// It was that, and has tried to make the lease.
    Maker,
    /// Some other server.
    Member,
}

/// The lease as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseState {
    pub holder: String,
    /// Another one after every write.
    pub version: String,
}

/// A write that may be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Over this version alone; `None`: it is made, and only where there is none.
    pub over: Option<String>,
    /// What has to be on disk before it is sent.
    pub role: Role,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrote {
    Done,
    /// Somebody was faster: nothing was written.
    Refused,
    /// Nobody knows.
    Unknown,
}

#[derive(Clone, Debug)]
pub struct Tenure {
    own: String,
    role: Role,
    /// The lease of another host, and since when it was seen like that.
    other: Option<(LeaseState, Millis)>,
    /// Since when there was no lease whenever it was looked for, and when that was last.
    absent: Option<(Millis, Millis)>,
    /// Until when the address may be held.
    until: Option<Millis>,
}

impl Tenure {
    pub fn new(own: &str, role: Role) -> Self {
        Self {
            own: own.to_owned(),
            role,
            other: None,
            absent: None,
            until: None,
        }
    }

    pub fn role(&self) -> Role {
        self.role
    }

    /// Until when the address may be on the interface; `None`: it may not.
    pub fn holds(&self, now: Millis) -> Option<Millis> {
        match self.role {
            Role::First => Some(now + HOLD),
            Role::Maker | Role::Member => self.until.filter(|until| now < *until),
        }
    }

    /// The lease was read. What it means now, and what may be written.
    pub fn read(&mut self, now: Millis, found: Option<&LeaseState>) -> Option<Write> {
        let Some(seen) = found else {
            self.other = None;
            return self.absent(now);
        };
        self.absent = None;
        // There is a lease, so there are others.
        self.role = self.role.with_a_lease();
        let write = Some(Write {
            over: Some(seen.version.clone()),
            role: self.role,
        });
        if seen.holder == self.own {
            self.other = None;
            return write;
        }
        // It is somebody else's: whatever this host had has ended, or the lease could not be theirs.
        self.until = None;
        let since = match &self.other {
            Some((known, since)) if known == seen => *since,
            _ => now,
        };
        self.other = Some((seen.clone(), since));
        // Whoever lets go of it by itself leaves no name.
        (seen.holder.is_empty() || now - since >= LEASE)
            .then_some(write)
            .flatten()
    }

    fn absent(&mut self, now: Millis) -> Option<Write> {
        let make = Some(Write {
            over: None,
            role: self.role.with_a_lease(),
        });
        if self.role == Role::First {
            return make;
        }
        // Deleted, or never made: its holder may not know yet. Nobody else makes one, so it was not there in between either; unless so much
        // time was between two looks that one which came late was taken by another host.
        let since = match self.absent {
            Some((since, last)) if now - last <= LOOKS => since,
            _ => now,
        };
        self.absent = Some((since, now));
        (self.role == Role::Maker && now - since >= LEASE)
            .then_some(make)
            .flatten()
    }

    /// A write is sent now. From here on the first server needs the lease: whoever sees it may have it one day.
    pub fn sends(&mut self, now: Millis) {
        if self.role == Role::First {
            self.until = Some(now + HOLD);
        }
        self.role = self.role.with_a_lease();
    }

    /// What came of the write that was sent then.
    pub fn wrote(&mut self, sent: Millis, came: Wrote) {
        if came == Wrote::Done {
            self.until = Some(sent + HOLD);
        }
    }
}

impl Role {
    fn with_a_lease(self) -> Self {
        match self {
            Self::First | Self::Maker => Self::Maker,
            Self::Member => Self::Member,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn seen(holder: &str, version: &str) -> LeaseState {
        LeaseState {
            holder: holder.to_owned(),
            version: version.to_owned(),
        }
    }

    #[test]
    fn the_first_server_holds_it_until_it_has_tried_to_make_the_lease() {
        let mut turn = Tenure::new("a", Role::First);
        assert_eq!(
            turn.holds(1_000_000),
            Some(1_000_000 + HOLD),
            "as long as it takes"
        );
        let write = turn.read(2_000_000, None).expect("it makes the lease");
        assert_eq!((write.over, write.role), (None, Role::Maker));
        turn.sends(2_000_000);
        turn.wrote(2_000_000, Wrote::Unknown);
        assert_eq!(turn.holds(2_000_000 + HOLD - 1), Some(2_000_000 + HOLD));
        assert_eq!(
            turn.holds(2_000_000 + HOLD),
            None,
            "nobody knows whether it is made"
        );
        // It was not: it is made when nobody can have it any more.
        for after in (0..LEASE).step_by(3_000) {
            assert_eq!(turn.read(2_010_000 + after, None), None);
        }
        assert!(turn.read(2_010_000 + LEASE, None).is_some());
        // Whoever did not look for a while begins again.
        assert_eq!(turn.read(2_040_000, None), None);
    }

    #[test]
    fn another_server_never_makes_the_lease_and_takes_one_that_stands_still() {
        let mut turn = Tenure::new("b", Role::Member);
        assert_eq!(turn.holds(0), None);
        for now in [0, LEASE, 10 * LEASE] {
            assert_eq!(
                turn.read(now, None),
                None,
                "the first server may hold it without one"
            );
        }
        let stands = seen("a", "1");
        assert_eq!(turn.read(200_000, Some(&stands)), None);
        assert_eq!(turn.read(200_000 + LEASE - 1, Some(&stands)), None);
        assert_eq!(
            turn.read(200_000 + LEASE, Some(&seen("a", "2"))),
            None,
            "it was renewed"
        );
        let write = turn
            .read(200_000 + 2 * LEASE, Some(&seen("a", "2")))
            .expect("it is taken");
        assert_eq!(write.over.as_deref(), Some("2"));
        turn.sends(231_000);
        turn.wrote(231_000, Wrote::Refused);
        assert_eq!(turn.holds(231_000), None);
        turn.wrote(231_000, Wrote::Done);
        assert_eq!(turn.holds(231_000), Some(231_000 + HOLD));
        assert!(turn.read(232_000, Some(&seen("", "9"))).is_some(), "it was left");
        assert_eq!(turn.holds(232_000), None, "it is not this host's");
    }

    /// One host in a world of messages that are lost and clocks that are wrong.
    struct Server {
        turn: Tenure,
        on_disk: Role,
        /// Its clock: what it showed at the beginning, and how fast it is in thousandths.
        offset: Millis,
        rate: Millis,
        /// Whether its own apiserver answers.
        is_cut: bool,
        /// The agent does nothing.
        is_stalled: bool,
        /// On the interface until this moment of its clock: the kernel drops it by itself.
        address: Option<Millis>,
        /// A write that is on its way, and when it was sent; it arrives later.
        on_its_way: Option<(Write, Millis)>,
    }

    impl Server {
        fn clock(&self, time: Millis) -> Millis {
            self.offset + time * self.rate / 1000
        }

        fn has_it(&self, time: Millis) -> bool {
            self.address.is_some_and(|until| self.clock(time) < until)
        }
    }

    #[derive(Default)]
    struct Lease {
        current: Option<LeaseState>,
        writes: u64,
    }

    impl Lease {
        fn write(&mut self, own: &str, write: &Write) -> bool {
            let version = self.current.as_ref().map(|seen| seen.version.clone());
            if version != write.over {
                return false;
            }
            self.writes += 1;
            self.current = Some(seen(own, &self.writes.to_string()));
            true
        }
    }

    #[derive(Clone, Debug)]
    enum Happens {
        /// The apiserver of a host is away, or back.
        Cut(usize, bool),
        Stall(usize, bool),
        /// Answers of writes get lost from now on, or no longer.
        Lossy(bool),
        /// The agent is started again, with what is on disk.
        Restart(usize),
        /// The machine is started again: the kernel has forgotten the address.
        Reboot(usize),
        /// A write that was thought lost arrives.
        Arrives(usize),
        /// Somebody deletes the lease.
        Delete,
    }

    fn happens() -> impl Strategy<Value = (Millis, Happens)> {
        let host = 0..3_usize;
        let what = prop_oneof![
            3 => (host.clone(), any::<bool>()).prop_map(|(host, is)| Happens::Cut(host, is)),
            2 => (host.clone(), any::<bool>()).prop_map(|(host, is)| Happens::Stall(host, is)),
            2 => any::<bool>().prop_map(Happens::Lossy),
            1 => host.clone().prop_map(Happens::Restart),
            1 => host.clone().prop_map(Happens::Reboot),
            2 => host.prop_map(Happens::Arrives),
            1 => Just(Happens::Delete),
        ];
        (100..9_000_i64, what)
    }

    fn play(rates: [Millis; 3], offsets: [Millis; 3], events: &[(Millis, Happens)]) -> Result<usize, String> {
        let names = ["a", "b", "c"];
        let mut hosts: Vec<Server> = (0..3)
            .map(|number| {
                let role = if number == 0 { Role::First } else { Role::Member };
                Server {
                    turn: Tenure::new(names[number], role),
                    on_disk: role,
                    offset: offsets[number],
                    rate: rates[number],
                    // The servers that join later are there from the beginning, and so is their apiserver: the worst case.
                    is_cut: false,
                    is_stalled: false,
                    address: None,
                    on_its_way: None,
                }
            })
            .collect();
        let (mut lease, mut is_lossy, mut held) = (Lease::default(), false, BTreeMap::new());
        let mut time = 0;
        let mut events = events.iter();
        let mut next = events.next().map(|(after, event)| (time + after, event));
        // After the last event everything heals, and there is time to take it.
        let end = 6 * LEASE;
        let mut healed_at = None;
        loop {
            if let Some((at, event)) = next {
                if time >= at {
                    match event {
                        Happens::Cut(host, is) => hosts[*host].is_cut = *is,
                        Happens::Stall(host, is) => hosts[*host].is_stalled = *is,
                        Happens::Lossy(is) => is_lossy = *is,
                        Happens::Restart(host) | Happens::Reboot(host) => {
                            let one = &mut hosts[*host];
                            one.turn = Tenure::new(names[*host], one.on_disk);
                            if matches!(event, Happens::Reboot(_)) {
                                one.address = None;
                            }
                        }
                        Happens::Arrives(host) => {
                            if let Some((write, _)) = hosts[*host].on_its_way.take() {
                                lease.write(names[*host], &write);
                            }
                        }
                        Happens::Delete => lease.current = None,
                    }
                    next = events.next().map(|(after, event)| (time + after, event));
                }
            } else if healed_at.is_none() {
                healed_at = Some(time);
                is_lossy = false;
                for host in &mut hosts {
                    (host.is_cut, host.is_stalled) = (false, false);
                }
            }
            for (number, host) in hosts.iter_mut().enumerate() {
                if host.is_stalled {
                    continue;
                }
                step(host, names[number], time, &mut lease, is_lossy);
            }
            let holders: Vec<_> = (0..3).filter(|number| hosts[*number].has_it(time)).collect();
            if holders.len() > 1 {
                return Err(format!("at {time} it is held by {holders:?}"));
            }
            for holder in holders {
                *held.entry(holder).or_insert(0) += 1;
            }
            if healed_at.is_some_and(|healed| time - healed > end) {
                let holder = (0..3).find(|number| hosts[*number].has_it(time));
                return match holder {
                    Some(_) => Ok(held.len()),
                    None => Err("nobody has it in the end".to_owned()),
                };
            }
            time += 250;
        }
    }

    /// As the keeper does it.
    fn step(host: &mut Server, own: &str, time: Millis, lease: &mut Lease, is_lossy: bool) {
        let now = host.clock(time);
        if !host.is_cut
            && let Some(write) = host.turn.read(now, lease.current.as_ref())
        {
            host.on_disk = write.role;
            host.turn.sends(now);
            if is_lossy {
                // Whether it arrived, and when, is not known.
                host.turn.wrote(now, Wrote::Unknown);
                host.on_its_way = Some((write, now));
            } else if lease.write(own, &write) {
                host.turn.wrote(now, Wrote::Done);
            } else {
                host.turn.wrote(now, Wrote::Refused);
            }
        } else {
            host.on_disk = host.turn.role();
        }
        // The kernel counts whole seconds.
        match host.turn.holds(now) {
            Some(until) => host.address = Some(now + (until - now) / 1000 * 1000),
            None => host.address = None,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(600))]

        /// Partitioned agents never both hold it, whatever their clocks show, and one of them does in the end.
        #[test]
        fn partitioned_agents_never_both_hold_it(
            rates in [800..1200_i64, 800..1200_i64, 800..1200_i64],
            offsets in [0..10_000_000_i64, 0..10_000_000_i64, 0..10_000_000_i64],
            events in proptest::collection::vec(happens(), 0..60),
        ) {
            if let Err(why) = play(rates, offsets, &events) {
                return Err(TestCaseError::fail(why));
            }
        }
    }

    #[test]
    fn it_goes_to_another_host_when_its_holder_is_cut_off_and_back() {
        let away = |host| (20_000, Happens::Cut(host, true));
        let back = |host| (40_000, Happens::Cut(host, false));
        let events = [away(0), back(0), away(1), away(2), back(1)];
        let held = play([1000; 3], [0, 5_000_000, 70], &events).expect("never two");
        assert!(held >= 2, "{held} hosts had it");
    }
}
