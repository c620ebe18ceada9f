//! What ARM itself refuses whatever the resource type: subscriptions, names of resource groups, locations and tags.

use serde_json::{Map, Value};
use uuid::Uuid;

use crate::{arm_id::ArmId, azure::Azure, error_response::ErrorResponse, kinds::Kind, locations};

/// Most tags on one resource, and the longest name and value.
const MOST_TAGS: usize = 50;
const LONGEST_TAG_NAME: usize = 512;
const LONGEST_TAG_VALUE: usize = 256;

/// A subscription is a UUID; with `anySubscription` off it must be a listed one.
pub fn check_subscription(azure: &Azure, subscription: &str) -> Result<(), ErrorResponse> {
    if Uuid::try_parse(subscription).is_err() {
        return Err(ErrorResponse::gateway(
            400,
            "InvalidSubscriptionId",
            format!("The provided subscription identifier '{subscription}' is malformed or invalid."),
        ));
    }
    let is_listed = || {
        azure
            .settings
            .subscriptions
            .iter()
            .any(|listed| listed.eq_ignore_ascii_case(subscription))
    };
    if azure.settings.any_subscription || is_listed() {
        return Ok(());
    }
    Err(ErrorResponse::gateway(
        404,
        "SubscriptionNotFound",
        format!("The subscription '{subscription}' could not be found."),
    ))
}

pub fn check_group_name(id: &ArmId) -> Result<(), ErrorResponse> {
    let Some(sent) = &id.group else {
        return Ok(());
    };
    let name = decoded(sent);
    let wrong: String = name
        .chars()
        .filter(|char| !char.is_alphanumeric() && !matches!(char, '-' | '.' | '(' | ')' | '_'))
        .collect();
    let problem = if !wrong.is_empty() {
        format!(
            "The provided resource group name '{name}' has these invalid characters: '{wrong}'. The name can only be a letter, digit, '-', '.', '(', ')' or '_'."
        )
    } else if name.ends_with('.') {
        format!("The provided resource group name '{name}' must not end with a period.")
    } else if name.chars().count() > 90 {
        format!("The provided resource group name '{name}' exceeds the maximum length of 90 characters.")
    } else {
        return Ok(());
    };
    Err(ErrorResponse::gateway(400, "InvalidResourceGroup", problem))
}

/// `%20` read as what it stands for.
fn decoded(text: &str) -> String {
    let form = format!("name={}", text.replace('+', "%2B").replace('&', "%26"));
    url::form_urlencoded::parse(form.as_bytes())
        .next()
        .map(|(_, name)| name.into_owned())
        .unwrap_or_default()
}

/// A location by its name without spaces, in lower case.
pub fn check_location(kind: &Kind, location: &str) -> Result<(), ErrorResponse> {
    if locations::exists(location) || (location == "global" && !kind.exclusive) {
        return Ok(());
    }
    Err(if kind.is("Microsoft.Resources/resourceGroups") {
        ErrorResponse::gateway(
            400,
            "LocationNotAvailableForResourceGroup",
            format!(
                "The provided location '{location}' is not available for resource group. List of available regions is '{}'.",
                locations::all()
            ),
        )
    } else {
        ErrorResponse::gateway(
            400,
            "LocationNotAvailableForResourceType",
            format!(
                "The provided location '{location}' is not available for resource type '{}'. List of available regions for the resource type is '{}'.",
                kind.path,
                locations::all()
            ),
        )
    })
}

pub fn check_tags(body: &Map<String, Value>) -> Result<(), ErrorResponse> {
    let Some(tags) = body.get("tags").and_then(Value::as_object) else {
        return Ok(());
    };
    if tags.len() > MOST_TAGS {
        return Err(ErrorResponse::gateway(
            400,
            "TooManyTags",
            format!(
                "The number of tags is {}, and a resource can have at most {MOST_TAGS}.",
                tags.len()
            ),
        ));
    }
    for (name, value) in tags {
        let value = value.as_str().unwrap_or_default();
        let reserved = |char: char| "<>%&\\?/".contains(char) || char.is_control();
        let (code, problem) = if name.is_empty() || name.chars().any(reserved) {
            (
                "InvalidTagNameCharacters",
                format!(
                    "The tag name '{name}' has reserved characters '<,>,%,&,\\,?,/' or control characters."
                ),
            )
        } else if name.chars().count() > LONGEST_TAG_NAME {
            (
                "TagNameTooLong",
                format!("The tag name '{name}' is longer than {LONGEST_TAG_NAME} characters."),
            )
        } else if value.chars().count() > LONGEST_TAG_VALUE {
            (
                "TagValueTooLong",
                format!("The value of the tag '{name}' is longer than {LONGEST_TAG_VALUE} characters."),
            )
        } else {
            continue;
        };
        return Err(ErrorResponse::gateway(400, code, problem));
    }
    Ok(())
}
