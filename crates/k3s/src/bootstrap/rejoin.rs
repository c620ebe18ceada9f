//! What keeps k3s from joining etcd again as soon as its member was removed. k3s leaves a tombstone then, and only a start that
//! finds it joins as a new member: on a host that is about to go, one that takes a vote along. With systemd such a start
//! waits until the host should be gone, and not for ever, because a learner that etcd gave up may come back.

use std::time::Duration;

pub const PATH: &str = "/etc/systemd/system/k3s.service.d/10-removed-member.conf";
/// Long enough for a platform to take a host away.
pub const WAIT: Duration = Duration::from_mins(10);
const TOMBSTONE: &str = "/var/lib/rancher/k3s/server/db/etcd/tombstone";

/// The drop-in for the unit that k3s' installer makes.
pub fn drop_in() -> String {
    format!(
        "[Service]\nExecStartPre=/bin/sh -c 'test ! -e {TOMBSTONE} || sleep {}'\n",
        WAIT.as_secs()
    )
}
