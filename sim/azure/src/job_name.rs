//! The name ARM gives the job that deletes a resource group: base64 of a small JSON document.

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD};
use serde_json::json;
use uuid::Uuid;

pub fn of_group_deletion(group: &str, unique: Uuid) -> String {
    let group = group.to_uppercase().replace('-', ":2D");
    let job = format!("RESOURCEGROUPDELETIONJOB-{group}-{}", unique.simple());
    STANDARD_NO_PAD
        .encode(json!({"jobId": job, "jobLocation": "westus3"}).to_string())
        .replace('/', "_")
}
