//! Where Azure is: the login host, the Resource Manager endpoint and audience of one cloud. Touches nothing.

use azure_core::cloud::{CloudConfiguration, CustomConfiguration};
use url::Url;

/// One Azure cloud.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cloud {
    name: String,
    authority_host: Url,
    endpoint: Url,
    audience: String,
    certificate_authorities: Vec<u8>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CloudError {
    #[error(
        "{name:?} is not an Azure cloud: use AzurePublicCloud, AzureUSGovernmentCloud or AzureChinaCloud, or describe a custom cloud"
    )]
    UnknownName { name: String },
    #[error("the {what} {value:?} must be an https URL: {reason}")]
    BadUrl {
        what: &'static str,
        value: String,
        reason: String,
    },
}

impl Cloud {
    pub fn public() -> Self {
        Self::known(
            "AzurePublicCloud",
            "https://login.microsoftonline.com/",
            "https://management.azure.com/",
        )
    }

    pub fn us_government() -> Self {
        Self::known(
            "AzureUSGovernmentCloud",
            "https://login.microsoftonline.us/",
            "https://management.usgovcloudapi.net/",
        )
    }

    pub fn china() -> Self {
        Self::known(
            "AzureChinaCloud",
            "https://login.chinacloudapi.cn/",
            "https://management.chinacloudapi.cn/",
        )
    }

    fn known(name: &str, authority_host: &str, endpoint: &str) -> Self {
        Self {
            name: name.to_owned(),
            authority_host: Url::parse(authority_host).expect("a known login host is a URL"),
            endpoint: Url::parse(endpoint).expect("a known endpoint is a URL"),
            audience: endpoint.trim_end_matches('/').to_owned(),
            certificate_authorities: Vec::new(),
        }
    }

    /// A cloud of one's own: Azure Stack, an air-gapped region, a simulator. An empty audience is the endpoint.
    pub fn custom(authority_host: &str, endpoint: &str, audience: &str) -> Result<Self, CloudError> {
        let parse = |what, value: &str| {
            let url = Url::parse(value).map_err(|error| CloudError::BadUrl {
                what,
                value: value.to_owned(),
                reason: error.to_string(),
            })?;
            if url.scheme() == "https" && url.host_str().is_some() {
                Ok(url)
            } else {
                Err(CloudError::BadUrl {
                    what,
                    value: value.to_owned(),
                    reason: "tokens are never sent without TLS".to_owned(),
                })
            }
        };
        let endpoint = parse("Resource Manager endpoint", endpoint)?;
        Ok(Self {
            name: "Custom".to_owned(),
            authority_host: parse("login host", authority_host)?,
            audience: if audience.is_empty() {
                endpoint.as_str().trim_end_matches('/').to_owned()
            } else {
                audience.to_owned()
            },
            endpoint,
            certificate_authorities: Vec::new(),
        })
    }

    /// The cloud CAPZ's `azureEnvironment` names; empty is the public one.
    pub fn by_name(name: &str) -> Result<Self, CloudError> {
        match name {
            "" | "AzurePublicCloud" | "AzurePublic" | "public" => Ok(Self::public()),
            "AzureUSGovernmentCloud" | "AzureUSGovernment" | "AzureGovernment" | "usgovernment" => {
                Ok(Self::us_government())
            }
            "AzureChinaCloud" | "AzureChina" | "china" => Ok(Self::china()),
            _ => Err(CloudError::UnknownName {
                name: name.to_owned(),
            }),
        }
    }

    /// Trusts these certificate authorities (a PEM bundle) besides the system's.
    #[must_use]
    pub fn trusting(mut self, pem_bundle: impl Into<Vec<u8>>) -> Self {
        self.certificate_authorities = pem_bundle.into();
        self
    }

    /// The same cloud with another login host, as an identity's credentials file may name one.
    #[must_use]
    pub fn with_authority_host(mut self, authority_host: Url) -> Self {
        self.authority_host = authority_host;
        self
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn endpoint(&self) -> &Url {
        &self.endpoint
    }

    pub fn authority_host(&self) -> &Url {
        &self.authority_host
    }

    pub fn certificate_authorities(&self) -> &[u8] {
        &self.certificate_authorities
    }

    /// The scope of a Resource Manager token.
    pub fn scope(&self) -> String {
        format!("{}/.default", self.audience)
    }

    /// Whether a URL is Resource Manager's own: its host, or a regional one below it. A token goes nowhere else,
    /// whatever a `Location` or `nextLink` says.
    pub fn owns(&self, url: &Url) -> bool {
        let (Some(host), Some(own)) = (url.host_str(), self.endpoint.host_str()) else {
            return false;
        };
        url.scheme() == "https"
            && url.port_or_known_default() == self.endpoint.port_or_known_default()
            && (host.eq_ignore_ascii_case(own)
                || host
                    .to_ascii_lowercase()
                    .ends_with(&format!(".{}", own.to_ascii_lowercase())))
    }

    pub(crate) fn configuration(&self) -> CloudConfiguration {
        let mut custom = CustomConfiguration::default();
        self.authority_host
            .as_str()
            .trim_end_matches('/')
            .clone_into(&mut custom.authority_host);
        custom.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clouds_are_found_by_the_names_manifests_use() {
        assert_eq!(Cloud::by_name("").unwrap(), Cloud::public());
        assert_eq!(
            Cloud::by_name("AzureUSGovernmentCloud").unwrap().scope(),
            "https://management.usgovcloudapi.net/.default"
        );
        assert_eq!(
            Cloud::by_name("AzureChinaCloud")
                .unwrap()
                .authority_host()
                .as_str(),
            "https://login.chinacloudapi.cn/"
        );
        assert!(matches!(
            Cloud::by_name("Moon"),
            Err(CloudError::UnknownName { .. })
        ));
    }

    #[test]
    fn a_custom_cloud_needs_tls() {
        assert!(matches!(
            Cloud::custom("http://login.local", "https://arm.local", ""),
            Err(CloudError::BadUrl {
                what: "login host",
                ..
            })
        ));
        let cloud = Cloud::custom(
            "https://login.local",
            "https://arm.local:8443",
            "https://arm.core.local/",
        )
        .unwrap();
        assert_eq!(cloud.scope(), "https://arm.core.local//.default");
    }

    #[test]
    fn only_the_endpoint_and_its_regions_are_trusted_with_a_token() {
        let cloud = Cloud::public();
        let owns = |url: &str| cloud.owns(&Url::parse(url).unwrap());
        assert!(owns("https://management.azure.com/subscriptions/a"));
        assert!(owns("https://westus2.management.azure.com/subscriptions/a"));
        assert!(!owns("http://management.azure.com/subscriptions/a"));
        assert!(!owns("https://management.azure.com:8443/subscriptions/a"));
        assert!(!owns("https://management.azure.com.evil.example/"));
        assert!(!owns("https://evilmanagement.azure.com/"));
    }
}
