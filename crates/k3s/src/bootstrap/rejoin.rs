//! What keeps k3s from joining etcd again as soon as its member was removed. k3s leaves a tombstone then, and only a start that
//! finds it joins as a new member: on a host that is about to go, one that takes a vote along. With systemd such a start
//! waits until the host should be gone. Somebody removed the member of a server that was up, and its host goes, if need be
//! when the management cluster is back after a night. A learner may also have been given up by etcd, which is no order: it
//! comes back earlier.

use std::time::Duration;

pub const PATH: &str = "/etc/systemd/system/k3s.service.d/10-removed-member.conf";
/// How long a start of k3s waits that finds its member removed.
pub const WAIT_OF_LEARNER: Duration = Duration::from_mins(10);
pub const WAIT_OF_VOTER: Duration = Duration::from_hours(24);
const TOMBSTONE: &str = "/var/lib/rancher/k3s/server/db/etcd/tombstone";
/// k3s tells systemd that it is up when its member votes, not before.
const VOTED: &str = "/var/lib/rancher/k3s/server/was-voter";

/// The drop-in for the unit that k3s' installer makes. Where the file cannot be written the server is up all the same.
pub fn drop_in() -> String {
    format!(
        "[Service]\n\
         ExecStartPre=/bin/sh -c 'test ! -e {TOMBSTONE} || if test -e {VOTED}; then sleep {}; else sleep {}; fi'\n\
         ExecStartPost=-/bin/sh -c 'touch {VOTED}'\n",
        WAIT_OF_VOTER.as_secs(),
        WAIT_OF_LEARNER.as_secs()
    )
}
