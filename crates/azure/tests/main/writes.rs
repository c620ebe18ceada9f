//! How often a write that Azure does not accept is sent, while something wakes the object every few seconds: a table of the
//! first minute and the first hour for every code and fault, in virtual time.

use std::time::Duration;

use slipway_azure::{Desired, Tuning};
use slipway_azure_sim::{Fault, Settings};
use slipway_runtime::Classified;

use crate::world::{World, group};

/// What Azure answers to each PUT, and the writes in the first minute and hour.
struct Row {
    status: u16,
    code: &'static str,
    message: &'static str,
    retry_after: Option<u64>,
    minute: usize,
    hour: usize,
    /// How often something wakes the object. A wait ends with the first wake after it, so many short waits need many wakes.
    woken: Duration,
}

const fn row(status: u16, code: &'static str, minute: usize, hour: usize) -> Row {
    Row {
        status,
        code,
        message: "no",
        retry_after: None,
        minute,
        hour,
        woken: Duration::from_secs(1),
    }
}

/// 0, 5, 15, 35 s in the first minute, and at most every five minutes in the end.
const SOON: (usize, usize) = (4, 17);
/// 0, 30 s, and at most every quarter of an hour.
const GRANT: (usize, usize) = (2, 8);
/// 0, 2, 6, 14, 30 min.
const CHANGE: (usize, usize) = (1, 5);

const OFTEN: Duration = Duration::from_millis(50);

const fn of(status: u16, code: &'static str, counts: (usize, usize)) -> Row {
    row(status, code, counts.0, counts.1)
}

fn table() -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for code in [
        "BadRequest",
        "BadRequestFormat",
        "InvalidParameter",
        "InvalidParameterValue",
        "InvalidRequestContent",
        "InvalidResourceLocation",
        "InvalidTemplate",
        "LocationRequired",
        "MissingRequiredParameter",
        "NoRegisteredProviderFound",
        "PropertyChangeNotAllowed",
        "ReservedResourceName",
        "SomethingNew",
    ] {
        rows.push(of(400, code, CHANGE));
    }
    for (status, code) in [
        (403, "AuthorizationFailed"),
        (403, "LinkedAuthorizationFailed"),
        (403, "RequestDisallowedByPolicy"),
        (409, "ScopeLocked"),
        (400, "QuotaExceeded"),
        (400, "ErrCode_InsufficientVCPUQuota"),
        (409, "SkuNotAvailable"),
        (404, "SubscriptionNotFound"),
        (409, "AllocationFailed"),
        (409, "OverconstrainedAllocationRequest"),
        (409, "OverconstrainedZonalAllocationRequest"),
        (409, "ZonalAllocationFailed"),
    ] {
        rows.push(of(status, code, GRANT));
    }
    for (status, code) in [
        (500, "InternalServerError"),
        (502, ""),
        (503, "ServiceUnavailable"),
        (504, "GatewayTimeout"),
        (404, "ResourceGroupNotFound"),
        (404, "ParentResourceNotFound"),
        (409, "Conflict"),
        (409, "MissingSubscriptionRegistration"),
    ] {
        rows.push(of(status, code, SOON));
    }
    // The second time it is no longer a matter of time.
    rows.push(row(401, "InvalidAuthenticationToken", 2, 8));
    rows.push(row(401, "ExpiredAuthenticationToken", 2, 8));
    // 0, 2, 6, 14, 30 s, then every minute.
    rows.push(Row {
        woken: OFTEN,
        ..row(412, "PreconditionFailed", 5, 64)
    });
    rows.push(Row {
        message: "Another operation (Updating) is in progress, please wait for it to finish",
        woken: OFTEN,
        ..row(409, "OperationNotAllowed", 3, 180)
    });
    rows.push(Row {
        retry_after: Some(600),
        ..row(429, "SubscriptionRequestsThrottled", 1, 6)
    });
    rows.push(Row {
        retry_after: Some(900),
        ..row(503, "ServiceUnavailable", 1, 4)
    });
    rows
}

#[tokio::test(start_paused = true)]
async fn the_number_of_writes_in_the_first_minute_and_hour_is_as_in_the_table() {
    let mut wrong = Vec::new();
    for row in table() {
        let settings = Settings {
            throttling: false,
            ..Settings::default()
        };
        let world = World::with(settings, Tuning::default());
        world.simulator.azure().add_fault(Fault {
            method: "PUT".into(),
            path: "/resourceGroups/".into(),
            times: 0,
            status: Some(row.status),
            code: row.code.into(),
            message: row.message.into(),
            retry_after: row.retry_after,
            ..Fault::default()
        });
        let (arm, put) = (world.arm("c"), group());
        let begin = tokio::time::Instant::now();
        let mut minute = None;
        while begin.elapsed() < Duration::from_hours(1) {
            let _ = arm.ensure(&Desired::new(&put, None)).await;
            if minute.is_none() && begin.elapsed() >= Duration::from_secs(59) {
                minute = Some(world.simulator.azure().count("PUT", "/resourceGroups/"));
            }
            tokio::time::sleep(row.woken).await;
        }
        let hour = world.simulator.azure().count("PUT", "/resourceGroups/");
        let minute = minute.unwrap();
        println!("report: {} {}: {minute}, {hour}", row.status, row.code);
        if (minute, hour) != (row.minute, row.hour) {
            wrong.push(format!(
                "{} {}: {minute} and {hour} writes, not {} and {}",
                row.status, row.code, row.minute, row.hour
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn a_request_limit_after_a_refusal_leaves_the_reason() {
    let world = World::with(Settings::default(), Tuning::default());
    let fault = |status: u16, code: &str| Fault {
        method: "PUT".into(),
        path: "/resourceGroups/".into(),
        times: 1,
        status: Some(status),
        code: code.into(),
        message: "the reason".into(),
        retry_after: (status == 429).then_some(60),
        ..Fault::default()
    };
    world.simulator.azure().add_fault(fault(400, "InvalidParameter"));
    let (arm, put) = (world.arm("c"), group());
    let desired = Desired::new(&put, None);
    let error = arm.ensure(&desired).await.unwrap_err();
    assert_eq!(error.code(), "InvalidParameter");
    tokio::time::sleep(Duration::from_mins(3)).await;
    world
        .simulator
        .azure()
        .add_fault(fault(429, "SubscriptionRequestsThrottled"));
    let error = arm.ensure(&desired).await.unwrap_err();
    assert_eq!(error.code(), "InvalidParameter", "{:?}", error.class());
    assert_eq!(world.simulator.azure().count("PUT", "/resourceGroups/"), 2);
}
