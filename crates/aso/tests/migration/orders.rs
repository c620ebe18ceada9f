//! The steps of Cluster API Provider Azure's document by hand, in every order and with every mistake that somebody may make, and what is
//! read afterwards.

use super::world::Surroundings;

/// One thing that a person does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    Pause,
    /// Until the move block is gone.
    Wait,
    /// Into a namespace of its own.
    Adopt,
    /// By the annotation on objects of Azure Service Operator, into a namespace of its own.
    AdoptByAnnotation,
    /// Into the namespace where the old objects are, under another name.
    AdoptBeside,
    Confirm,
    Resume,
    Restart,
    /// A second manager runs from now on, and no lease keeps them apart.
    SecondManager,
    DeleteCluster,
    DeleteInfrastructure,
    DeletePlane,
    DeleteMachinePools,
    DeletePools,
    FreePools,
    FreeMachinePools,
    FreePlane,
    FreeCluster,
}

use Deed::{
    Adopt, AdoptBeside, AdoptByAnnotation, Confirm, DeleteCluster, DeleteInfrastructure, DeleteMachinePools,
    DeletePlane, DeletePools, FreeCluster, FreeMachinePools, FreePlane, FreePools, Pause, Restart, Resume,
    SecondManager, Wait,
};

/// The document's steps after the adoption, in its order.
const REST: [Deed; 9] = [
    DeleteCluster,
    DeleteInfrastructure,
    DeletePlane,
    DeleteMachinePools,
    DeletePools,
    FreePools,
    FreeMachinePools,
    FreePlane,
    FreeCluster,
];

fn with(first: &[Deed], rest: &[Deed]) -> Vec<Deed> {
    [first, rest].concat()
}

/// What a person does in one go, and what somebody who looks afterwards reads.
pub struct Order {
    pub name: String,
    pub surroundings: Surroundings,
    pub deeds: Vec<Deed>,
    /// Words that stand in conditions, events or what commands refused.
    pub says: &'static [&'static str],
}

/// Every order that is tried.
pub fn orders() -> Vec<Order> {
    let mut orders: Vec<Order> = Vec::new();
    let mut add = |name: String, deeds: Vec<Deed>| {
        let says = says(&name);
        orders.push(Order {
            name,
            surroundings: Surroundings::Alone,
            deeds,
            says,
        });
    };
    add(
        "as the document says".to_owned(),
        with(&[Pause, Wait, Adopt], &REST),
    );
    for turn in 1..REST.len() {
        let mut rest = REST;
        rest.rotate_left(turn);
        add(
            format!("the deletions turned by {turn}"),
            with(&[Pause, Wait, Adopt], &rest),
        );
    }
    let mut backwards = REST;
    backwards.reverse();
    add(
        "the deletions backwards".to_owned(),
        with(&[Pause, Wait, Adopt], &backwards),
    );
    for (number, deed) in REST.into_iter().enumerate() {
        let mut rest = REST.to_vec();
        rest.remove(number);
        add(format!("{deed:?} forgotten"), with(&[Pause, Wait, Adopt], &rest));
    }
    add(
        "nothing but deletions".to_owned(),
        with(&[Pause, Wait, Adopt], &REST[..5]),
    );
    add(
        "finalizers first".to_owned(),
        with(&with(&[Pause, Wait, Adopt], &REST[5..]), &REST[..5]),
    );
    add("without waiting".to_owned(), with(&[Pause, Adopt], &REST));
    add(
        "adopted before it is paused".to_owned(),
        with(&[Adopt, Pause, Wait], &REST),
    );
    add(
        "deleted before it is adopted".to_owned(),
        [&[Pause, Wait][..], &REST, &[Adopt]].concat(),
    );
    add(
        "deleted backwards before it is adopted".to_owned(),
        [&[Pause, Wait][..], &backwards, &[Adopt]].concat(),
    );
    add(
        "finalizers first, before it is adopted".to_owned(),
        [&[Pause, Wait][..], &REST[5..], &REST[..5], &[Adopt]].concat(),
    );
    add("never paused".to_owned(), with(&[Adopt], &REST));
    add("never paused, backwards".to_owned(), with(&[Adopt], &backwards));
    add(
        "never paused, finalizers first".to_owned(),
        with(&with(&[Adopt], &REST[5..]), &REST[..5]),
    );
    add(
        "never paused, only the Cluster".to_owned(),
        vec![Adopt, DeleteCluster],
    );
    add(
        "never paused, only the pools".to_owned(),
        vec![Adopt, DeleteMachinePools, DeletePools],
    );
    add(
        "never paused, only the control plane".to_owned(),
        vec![Adopt, DeletePlane],
    );
    add(
        "resumed after the deletions".to_owned(),
        with(&with(&[Pause, Wait, Adopt], &REST[..5]), &[Resume]),
    );
    add(
        "resumed between deletions and finalizers".to_owned(),
        [&[Pause, Wait, Adopt][..], &REST[..5], &[Resume], &REST[5..]].concat(),
    );
    add(
        "resumed before anything is deleted".to_owned(),
        with(&[Pause, Wait, Adopt, Resume], &REST),
    );
    add(
        "confirmed before the old ones are gone".to_owned(),
        with(&[Pause, Wait, Adopt, Confirm], &REST),
    );
    add(
        "confirmed, never paused".to_owned(),
        with(&[Adopt, Confirm], &REST),
    );
    add(
        "confirmed once the old ones are gone".to_owned(),
        with(&with(&[Pause, Wait, Adopt], &REST), &[Confirm]),
    );
    add(
        "the manager restarts between adoption and deletion".to_owned(),
        with(&[Pause, Wait, Adopt, Restart], &REST),
    );
    add(
        "the manager restarts in the middle of the deletions".to_owned(),
        [&[Pause, Wait, Adopt][..], &REST[..4], &[Restart], &REST[4..]].concat(),
    );
    add(
        "never paused, and the manager restarts".to_owned(),
        [&[Adopt][..], &[DeleteCluster, Restart]].concat(),
    );
    add(
        "adopted beside the old objects".to_owned(),
        with(&[Pause, Wait, AdoptBeside], &REST),
    );
    add(
        "adopted beside the old objects, never paused".to_owned(),
        with(&[AdoptBeside], &REST),
    );
    add(
        "adopted twice".to_owned(),
        with(&[Pause, Wait, Adopt, Adopt], &REST),
    );
    add(
        "a second manager all the while".to_owned(),
        with(&[SecondManager, Pause, Wait, Adopt], &REST),
    );
    add(
        "a second manager, never paused".to_owned(),
        with(&[SecondManager, Adopt, Confirm], &REST),
    );
    add(
        "confirmed while both are at work".to_owned(),
        vec![Adopt, Confirm],
    );
    let mut beside = |name: &str, surroundings: Surroundings, deeds: Vec<Deed>| {
        let name = format!("{name}, {surroundings:?}");
        orders.push(Order {
            says: says(&name),
            name,
            surroundings,
            deeds,
        });
    };
    for surroundings in [Surroundings::KindsOfOperator, Surroundings::Operator] {
        beside(
            "as the document says",
            surroundings,
            with(&[Pause, Wait, Adopt], &REST),
        );
        beside("never paused", surroundings, with(&[Adopt], &REST));
        beside(
            "finalizers first",
            surroundings,
            [&[Pause, Wait, Adopt][..], &REST[5..], &REST[..5]].concat(),
        );
        beside(
            "confirmed, never paused",
            surroundings,
            with(&[Adopt, Confirm], &REST),
        );
    }
    let operator = Surroundings::Operator;
    beside(
        "by annotation",
        operator,
        with(&[Pause, Wait, AdoptByAnnotation], &REST),
    );
    beside("by annotation, backwards", operator, {
        let mut rest = REST;
        rest.reverse();
        with(&[Pause, Wait, AdoptByAnnotation], &rest)
    });
    beside(
        "by annotation, never paused",
        operator,
        with(&[AdoptByAnnotation], &REST),
    );
    beside("by annotation, both at work", operator, vec![AdoptByAnnotation]);
    orders
}

/// What is read after an order.
fn says(name: &str) -> &'static [&'static str] {
    let found = SAYS.iter().find(|(known, _)| *known == name);
    found.map_or(&[], |(_, says)| says)
}

/// What admission says of a system pool that is deleted by itself.
const LAST_POOL: &[&str] = &[
    "at least one system pool",
    "delete the Cluster to delete them all",
];

const SAYS: &[(&str, &[&str])] = &[
    ("the deletions turned by 1", LAST_POOL),
    ("the deletions turned by 2", LAST_POOL),
    ("the deletions turned by 3", LAST_POOL),
    ("the deletions turned by 4", LAST_POOL),
    ("the deletions backwards", LAST_POOL),
    ("DeleteCluster forgotten", LAST_POOL),
    ("nothing but deletions", &["paused"]),
    (
        "confirmed while both are at work",
        &["belongs to AzureManagedControlPlane default/fleet until that one is gone"],
    ),
];
