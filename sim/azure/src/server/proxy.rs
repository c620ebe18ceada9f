//! The CONNECT proxy: to clients it is the way out, and it leads to the simulator. Names that are not Azure's are
//! refused; nothing leaves the machine.

use bytes::Bytes;
use http::Method;
use http_body_util::Full;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::{Dropped, Shared, answer, plain, serve as serve_stream};

/// Endings of host names that are answered here.
const SIMULATED: &[&str] = &[
    "management.azure.com",
    "management.core.windows.net",
    "management.usgovcloudapi.net",
    "management.chinacloudapi.cn",
    "login.microsoftonline.com",
    "login.microsoftonline.us",
    "login.partner.microsoftonline.cn",
    "login.chinacloudapi.cn",
    "login.windows.net",
    "login.microsoft.com",
    "sts.windows.net",
];

pub fn is_simulated(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    host == "169.254.169.254"
        || SIMULATED
            .iter()
            .any(|name| host == *name || host.strip_suffix(name).is_some_and(|rest| rest.ends_with('.')))
}

pub async fn serve(stream: TcpStream, shared: Shared) {
    let service = service_fn(move |request| handle(request, shared.clone()));
    let served = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "proxy connection ended");
    }
}

async fn handle(
    request: hyper::Request<Incoming>,
    shared: Shared,
) -> Result<hyper::Response<Full<Bytes>>, Dropped> {
    let host = request.uri().host().unwrap_or_default().to_owned();
    if !is_simulated(&host) {
        return Ok(plain(
            403,
            &format!("azure-sim: {host} is not simulated, and nothing is passed on"),
        ));
    }
    if request.method() != Method::CONNECT {
        // Plain HTTP through the proxy: the metadata service.
        return answer(request, shared).await;
    }
    tokio::spawn(async move {
        match hyper::upgrade::on(request).await {
            Ok(upgraded) => {
                if let Ok(stream) = shared.tls.clone().accept(TokioIo::new(upgraded)).await {
                    serve_stream(stream, shared).await;
                }
            }
            Err(error) => tracing::debug!(%error, "a tunnel did not open"),
        }
    });
    Ok(hyper::Response::new(Full::new(Bytes::new())))
}
