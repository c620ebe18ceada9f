//! The machines of a pool: which are shown, which go, what AKS is asked to delete and what is kept.

use slipway_azure::machine::{
    Action, Fleet, Vm,
    fleet::{CoreMachine, LAST_SYSTEM_NODE, Shown, Switch},
};
use slipway_capi::frame::Plan;

use super::golden;

fn vm(number: u32) -> Vm {
    Vm {
        provider_id: format!("azure:///set/virtualMachines/{number}"),
        machine: Some(format!("vmss_{number}")),
        name: format!("vmss00000{number}"),
        ..Vm::default()
    }
}

fn shown(number: u32) -> Shown {
    Shown {
        name: vm(number).name,
        provider_id: vm(number).provider_id,
        is_deleting: false,
    }
}

fn machine(number: u32) -> CoreMachine {
    CoreMachine {
        name: vm(number).name,
        infrastructure: vm(number).name,
        is_ready: true,
        has_finalizer: true,
        ..CoreMachine::default()
    }
}

/// A pool at rest.
fn fleet(numbers: &[u32]) -> Fleet {
    let count = i32::try_from(numbers.len()).ok();
    Fleet {
        switch: Switch::On,
        is_told: true,
        vms: Some(numbers.iter().map(|number| vm(*number)).collect()),
        is_fresh: true,
        shown: numbers.iter().map(|number| shown(*number)).collect(),
        machines: numbers.iter().map(|number| machine(*number)).collect(),
        replicas: count,
        count,
        look_again: std::time::Duration::from_mins(10),
        ..Fleet::default()
    }
}

fn with(numbers: &[u32], change: impl FnOnce(&mut Fleet)) -> Fleet {
    let mut fleet = fleet(numbers);
    change(&mut fleet);
    fleet
}

fn plan(fleet: &Fleet) -> Plan<Action> {
    let mut plan = Plan::new();
    fleet.plan(&mut plan);
    plan
}

/// The Machine is deleted, and core has drained its node.
fn deleted(fleet: &mut Fleet, index: usize) {
    fleet.machines[index].is_deleting = true;
    fleet.shown[index].is_deleting = true;
}

#[test]
fn the_plan_for_the_machines_of_a_pool() {
    let own = Vm {
        provider_id: "azure:///mine/virtualMachines/own".into(),
        name: "own".into(),
        ..Vm::default()
    };
    let situations = [
        ("nobody looked", Fleet::default()),
        ("at rest", fleet(&[0, 1, 2])),
        (
            "nobody can tell which VMs there are",
            with(&[0], |fleet| fleet.vms = None),
        ),
        (
            "switched on for a pool that was made without machines",
            with(&[0, 1], |fleet| {
                fleet.is_told = false;
                fleet.shown.clear();
                fleet.machines.clear();
            }),
        ),
        (
            "a VM joined by itself, another is AKS's surge",
            with(&[0, 1], |fleet| {
                fleet.vms.as_mut().expect("VMs").extend([vm(2), own]);
                fleet.occupied = Some("Azure is at work on it: Upgrading".into());
            }),
        ),
        (
            "Azure has taken a VM away",
            with(&[0, 1, 2], |fleet| {
                fleet.vms.as_mut().expect("VMs").remove(1);
            }),
        ),
        (
            "core made a Machine for an object that had just gone",
            with(&[0, 1], |fleet| fleet.machines.push(machine(7))),
        ),
        (
            "an object of the same name stands for another VM",
            with(&[0], |fleet| fleet.shown[0].provider_id = "azure:///old".into()),
        ),
        (
            "fewer are asked for, one is marked",
            with(&[0, 1, 2], |fleet| {
                fleet.replicas = Some(2);
                fleet.machines[1].is_marked = true;
            }),
        ),
        (
            "fewer are asked for, one is not ready",
            with(&[0, 1, 2], |fleet| {
                fleet.replicas = Some(1);
                fleet.machines[0].is_ready = false;
            }),
        ),
        (
            "fewer are asked for, the marked one is on its way",
            with(&[0, 1, 2], |fleet| {
                fleet.replicas = Some(2);
                fleet.machines[1].is_marked = true;
                fleet.machines[1].is_deleting = true;
            }),
        ),
        (
            "fewer are asked for, the marked one is being deleted in Azure",
            with(&[0, 1, 2], |fleet| {
                fleet.replicas = Some(2);
                deleted(fleet, 1);
                fleet.occupied = Some("Azure is at work on it".into());
            }),
        ),
        (
            "fewer are asked for while AKS is at work",
            with(&[0, 1, 2], |fleet| {
                fleet.replicas = Some(1);
                fleet.occupied = Some("Azure is at work on it: Upgrading".into());
            }),
        ),
        (
            "AKS scales, and somebody marked one",
            with(&[0, 1, 2], |fleet| {
                fleet.replicas = Some(1);
                fleet.is_scaled_by_aks = true;
                fleet.machines[1].is_marked = true;
            }),
        ),
        (
            "AKS scales, and somebody deletes one",
            with(&[0, 1, 2], |fleet| {
                fleet.is_scaled_by_aks = true;
                deleted(fleet, 2);
            }),
        ),
        (
            "two are deleted",
            with(&[0, 1, 2], |fleet| {
                deleted(fleet, 0);
                deleted(fleet, 2);
            }),
        ),
        (
            "health checks gave up two",
            with(&[0, 1, 2], |fleet| {
                fleet.machines[0].unhealthy = Some("Condition Ready on Node is Unknown".into());
                fleet.machines[2].unhealthy = Some("its health check failed".into());
            }),
        ),
        ("a system pool of one", with(&[0], |fleet| fleet.is_system = true)),
        (
            "a system pool of one is asked away",
            with(&[0], |fleet| {
                fleet.is_system = true;
                fleet.replicas = Some(0);
                fleet.machines[0].is_held = true;
            }),
        ),
        (
            "the last node of a system pool, past core's hook",
            with(&[0], |fleet| {
                fleet.is_system = true;
                fleet.machines[0].is_held = true;
                deleted(fleet, 0);
            }),
        ),
        (
            "it has another now",
            with(&[0, 1], |fleet| {
                fleet.is_system = true;
                fleet.machines[0].is_held = true;
                deleted(fleet, 0);
            }),
        ),
        (
            "health checks gave up a whole system pool",
            with(&[0, 1], |fleet| {
                fleet.is_system = true;
                for machine in &mut fleet.machines {
                    machine.unhealthy = Some("its health check failed".into());
                }
            }),
        ),
        (
            "switched off, core still told",
            with(&[0], |fleet| fleet.switch = Switch::Off),
        ),
        (
            "switched off",
            with(&[0, 1, 2], |fleet| {
                fleet.switch = Switch::Off;
                fleet.is_told = false;
                fleet.machines[1].is_paused = true;
                fleet.machines[2].is_paused = true;
                fleet.machines[2].knows_pause = true;
            }),
        ),
        (
            "switched off, the Machines are gone",
            with(&[0], |fleet| {
                fleet.switch = Switch::Off;
                fleet.is_told = false;
                fleet.machines.clear();
            }),
        ),
    ];
    let printed = situations.map(|(title, fleet)| (title, plan(&fleet).to_string()));
    golden("machines.golden", printed.into());
}

#[test]
fn a_pool_with_machines_is_never_scaled_down_by_its_count() {
    let down = with(&[0, 1, 2], |fleet| fleet.replicas = Some(1));
    assert_eq!(down.replicas_to_ask_for(1), 3);
    assert_eq!(down.replicas_to_ask_for(5), 5);
    let by_aks = with(&[0, 1, 2], |fleet| fleet.is_scaled_by_aks = true);
    assert_eq!(
        by_aks.replicas_to_ask_for(1),
        1,
        "AKS's count is not ours to keep"
    );
    let off = with(&[0, 1, 2], |fleet| fleet.switch = Switch::Off);
    assert_eq!(off.replicas_to_ask_for(1), 1);
}

/// However often somebody is killed in between: the marked one goes, once, and no other.
#[test]
fn a_scale_down_is_one_and_the_same_at_every_moment() {
    let mut fleet = with(&[0, 1, 2], |fleet| {
        fleet.replicas = Some(2);
        fleet.machines[0].is_marked = true;
    });
    let deletes = |fleet: &Fleet| {
        let plan = plan(fleet);
        let names = plan.actions().filter_map(|action| match action {
            Action::DeleteMachine { name } => Some(name.clone()),
            _ => None,
        });
        names.collect::<Vec<_>>()
    };
    assert_eq!(deletes(&fleet), ["vmss000000"]);
    fleet.machines[0].is_deleting = true;
    assert!(deletes(&fleet).is_empty(), "core drains");
    fleet.shown[0].is_deleting = true;
    assert!(deletes(&fleet).is_empty(), "AKS is asked");
    fleet.occupied = Some("Azure is at work on it".into());
    assert!(deletes(&fleet).is_empty(), "AKS works, and still shows the VM");
    fleet.vms.as_mut().expect("VMs").remove(0);
    fleet.count = Some(2);
    fleet.occupied = None;
    assert!(
        deletes(&fleet).is_empty(),
        "the VM is gone, its object is not yet"
    );
    fleet.shown.remove(0);
    assert!(deletes(&fleet).is_empty());
    fleet.machines.remove(0);
    assert!(deletes(&fleet).is_empty(), "two are left of two");
}

#[test]
fn what_holds_up_a_deletion_is_said() {
    let last = with(&[0], |fleet| fleet.is_system = true);
    let (reason, message) = &last.held()[&vm(0).key()];
    assert_eq!(*reason, LAST_SYSTEM_NODE);
    assert!(message.contains("more replicas"), "{message}");
    let busy = with(&[0, 1], |fleet| {
        fleet.occupied = Some("Azure is at work on it: Scaling".into());
    });
    assert!(busy.held()[&vm(0).key()].1.contains("Scaling"));
}
