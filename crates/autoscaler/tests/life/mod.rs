//! The controllers on the apiserver simulator, with a Cluster API, hosts and a kube-scheduler that are just enough: pods that wait
//! get nodes, claims that go take their Machines along, and every fault at every call ends the same.

mod cluster;
mod disruption;
mod dry_run;
mod journeys;
mod safety;
mod schedules;
mod workload;
