//! HTTP on loopback: for dashboards, scripts and Prometheus.
//!
//! Every client that reaches the port may read. A client that changes the policy sends the token
//! from the state directory. The token also keeps out a web page that connects to the port from a
//! user's browser. Such a page could still read, if its own name resolved to this machine ("DNS
//! rebinding"). So the server refuses requests for another host than this one.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::{QueryRejection, StringRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use futures_core::Stream;
use prometheus_client::metrics::histogram::Histogram;
use serde::{Deserialize, Serialize};
use tidegate_fabric::clock::Clock;
use tidegate_model::Discipline;
use tidegate_model::discipline::UnknownDiscipline;
use tidegate_proto::cluster::status::NodeStatus;
use tidegate_proto::controller::status::{Applied, PolicyText, Status, TimedEvent};
use tidegate_proto::stats::delays::Delays;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, watch};
use utoipa::{IntoParams, OpenApi, ToSchema};

use crate::http_stream::HttpListener;
use crate::input::{DelaysError, Stopping};
use crate::metrics::{self, Metrics};
use crate::readiness::unserved;
use crate::register::{ApplyError, ApplyOrder, ChooseError, Register};
use crate::shared::SharedReply;
use crate::store::PutError;
use crate::token::Token;

/// The longest policy that is accepted: ten thousand rules.
const BODY_MAX: usize = 1 << 20;

/// Policies in a history by default.
const HISTORY_SHOWN: usize = 20;

/// The header that carries a policy's revision.
const REVISION: HeaderName = HeaderName::from_static("tidegate-revision");

#[derive(Clone)]
pub(crate) struct HttpContext {
    pub(crate) register: Arc<Register>,
    pub(crate) events: broadcast::Sender<Arc<TimedEvent>>,
    /// Watchers stay connected without a limit, so they may not take all connections.
    pub(crate) watchers: Arc<Semaphore>,
    pub(crate) token: Token,
    pub(crate) answers: Arc<Answers>,
}

/// Requests that clients may repeat without a limit: one reply serves all that wait for it.
#[derive(Debug)]
pub(crate) struct Answers {
    status: SharedReply<Bytes>,
    registry: Metrics,
    metrics: SharedReply<Bytes>,
    /// The reasons why something cannot be served, for people.
    readiness: SharedReply<Vec<String>>,
}

impl Answers {
    pub(crate) fn new(clock: Clock, cycle_seconds: Histogram) -> Self {
        Self {
            status: SharedReply::new(clock),
            registry: Metrics::new(cycle_seconds),
            metrics: SharedReply::new(clock),
            readiness: SharedReply::new(clock),
        }
    }
}

/// Serves until the daemon ends. Watchers are disconnected then.
pub(crate) async fn serve(
    entrance: HttpListener,
    context: HttpContext,
    hosts: Hosts,
    mut stop: watch::Receiver<bool>,
) {
    let app = router(context, hosts);
    tokio::select! {
        ended = axum::serve(entrance, app) => {
            if let Err(error) = ended {
                tracing::error!(%error, "HTTP has ended");
            }
        }
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

/// The names of this host in HTTP requests.
#[derive(Clone, Debug)]
pub(crate) struct Hosts(Arc<[String]>);

impl Hosts {
    /// Those of this machine, that of the address, and more.
    pub(crate) fn new(address: SocketAddr, more: &[String]) -> Self {
        let own = ["localhost", "127.0.0.1", "[::1]"].map(String::from);
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        Self(own.into_iter().chain([ip]).chain(more.iter().cloned()).collect())
    }

    /// Whether this is one of them, with any port: a user may have forwarded another one.
    fn has(&self, authority: &str) -> bool {
        let port = authority.rsplit_once(':').filter(|(_, port)| {
            !port.is_empty() && port.bytes().all(|digit| digit.is_ascii_digit())
        });
        let host = port.map_or(authority, |(host, _)| host);
        self.0.iter().any(|own| own.eq_ignore_ascii_case(host))
    }

    /// Whether a request names this host wherever it names one. A request without a host is no
    /// browser's.
    fn include(&self, request: &Request) -> bool {
        let in_headers = request.headers().get_all(header::HOST).iter();
        let named = in_headers.map(|host| host.to_str().unwrap_or(""));
        let in_target = request.uri().authority().map(|authority| authority.as_str());
        named.chain(in_target).all(|host| self.has(host))
    }
}

/// Refuses requests for another host.
async fn only_this_host(State(hosts): State<Hosts>, request: Request, next: Next) -> Response {
    if hosts.include(&request) {
        return next.run(request).await;
    }
    let message = "this is not the host that the request asks for; use localhost or 127.0.0.1, or \
                   start the controller with --http-host NAME";
    Problem::reply(StatusCode::MISDIRECTED_REQUEST, 1, message)
}

fn router(context: HttpContext, hosts: Hosts) -> Router {
    let router = Router::new()
        .route("/v1/status", get(status))
        .route("/v1/tenants/{name}/delays", get(delays))
        .route("/v1/policy", get(policy).put(put_policy))
        .route("/v1/policy/history", get(history))
        .route("/v1/nodes/{name}/scheduler", put(put_scheduler).delete(delete_scheduler))
        .route("/v1/events", get(events))
        .route("/metrics", get(scrape))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/openapi.json", get(openapi_json))
        .layer(DefaultBodyLimit::max(BODY_MAX));
    with_hosts(router, hosts).with_state(context)
}

/// Refuses requests for other hosts.
pub(crate) fn with_hosts<S: Clone + Send + Sync + 'static>(
    router: Router<S>,
    hosts: Hosts,
) -> Router<S> {
    router.layer(middleware::from_fn_with_state(hosts, only_this_host))
}

/// The description of this interface as the repository has it, which a test holds equal to
/// [`openapi`]. So programs that serve it need not make it: that code has half a megabyte.
const DESCRIPTION: &str = include_str!("../../../api/controller.json");

/// Makes the description of this interface, as OpenAPI in JSON, from the code below.
pub fn openapi() -> String {
    let mut text = Api::openapi().to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Tidegate controller",
        description = "What the control plane knows and does. Served on loopback only.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    paths(
        status, delays, policy, put_policy, history, put_scheduler, delete_scheduler, events,
        scrape, healthz, readyz, openapi_json
    ),
    modifiers(&TokenScheme)
)]
struct Api;

/// Names the token in the description.
struct TokenScheme;

impl utoipa::Modify for TokenScheme {
    fn modify(&self, api: &mut utoipa::openapi::OpenApi) {
        use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
        let mut scheme = Http::new(HttpAuthScheme::Bearer);
        scheme.description = Some("The content of `token` in the state directory.".into());
        let components = api.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(scheme));
    }
}

/// Something was not done.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// The exit code that the command line would end with: 1 failure, 3 invalid, 4 infeasible.
    code: u8,
    /// Why, and what to do about it.
    message: String,
}

impl Problem {
    pub(crate) fn reply(status: StatusCode, code: u8, message: impl ToString) -> Response {
        json(status, &Self { code, message: message.to_string() })
    }
}

/// How to apply a policy.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct PutQuery {
    /// Only say what would change.
    #[serde(default)]
    dry_run: bool,
    /// Refuse unless this revision is in force; zero for any.
    #[serde(default)]
    expect: u64,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct HistoryQuery {
    /// At most so many policies, the latest first; 20 if not said.
    count: Option<usize>,
}

/// The state of the controller, its tenants, its stages and its cluster
#[utoipa::path(get, path = "/v1/status", responses(
    (status = 200, description = "The state as of the last cycle", body = Status)
))]
async fn status(State(context): State<HttpContext>) -> Response {
    let text = async {
        let survey = context.register.survey().await.map_err(stopping)?;
        written(move || serde_json::to_vec(&survey.status)).await
    };
    match context.answers.status.get(text).await {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(response) => response,
    }
}

/// Why requests of a tenant were delayed in the last minute
#[utoipa::path(get, path = "/v1/tenants/{name}/delays",
    params(("name" = String, Path, description = "The tenant's name")),
    responses(
        (status = 200, description = "How long requests were at gates of stages and at nodes, for \
         which rule, and what would change it", body = Delays),
        (status = 404, description = "The policy has no such tenant", body = Problem)
    )
)]
async fn delays(State(context): State<HttpContext>, Path(name): Path<String>) -> Response {
    match context.register.delays(name).await {
        Ok(delays) => json(StatusCode::OK, &delays),
        Err(DelaysError::Stopping(error)) => stopping(error),
        Err(error) => Problem::reply(StatusCode::NOT_FOUND, 1, error),
    }
}

/// The policy in force, as text
#[utoipa::path(get, path = "/v1/policy", responses(
    (status = 200, description = "Its text", body = String, content_type = "application/toml",
     headers(("tidegate-revision" = u64, description = "Its revision"))),
    (status = 404, description = "No policy is in force", body = Problem)
))]
async fn policy(State(context): State<HttpContext>) -> Response {
    let Some(policy) = context.register.policy().await else {
        return Problem::reply(StatusCode::NOT_FOUND, 1, ApplyError::NONE_YET);
    };
    let toml = HeaderValue::from_static("application/toml");
    let headers = [(header::CONTENT_TYPE, toml), (REVISION, policy.revision.into())];
    (headers, policy.text).into_response()
}

/// Brings a policy into force
#[utoipa::path(put, path = "/v1/policy", params(PutQuery), security(("token" = [])),
    request_body(content = String, content_type = "application/toml", description = "Its text"),
    responses(
        (status = 200, description = "It is in force, or would be", body = Applied),
        (status = 400, description = "The text is not UTF-8 or the query is wrong", body = Problem),
        (status = 401, description = "The token is missing or wrong", body = Problem),
        (status = 409, description = "Another revision is in force", body = Problem),
        (status = 413, description = "The text is longer than 1 MiB", body = Problem),
        (status = 422, description = "The policy is invalid or infeasible", body = Problem),
        (status = 507, description = "The store has no space left", body = Problem)
    )
)]
async fn put_policy(
    State(context): State<HttpContext>,
    headers: HeaderMap,
    query: Result<Query<PutQuery>, QueryRejection>,
    text: Result<String, StringRejection>,
) -> Response {
    if let Some(refusal) = refusal(&context, &headers) {
        return refusal;
    }
    let query = query.map_err(|error| (error.status(), error.body_text()));
    let text = text.map_err(|error| (error.status(), error.body_text()));
    let (Query(PutQuery { dry_run, expect }), text) =
        match query.and_then(|query| Ok((query, text?))) {
            Ok(read) => read,
            Err((status, message)) => return Problem::reply(status, 1, message),
        };
    let order = ApplyOrder { text, source: "HTTP".into(), dry_run, expect };
    match context.register.apply(order).await {
        Ok(applied) => json(StatusCode::OK, &applied),
        Err(error) => {
            let status = match &error {
                ApplyError::Empty { .. }
                | ApplyError::Invalid { .. }
                | ApplyError::Refused { .. } => StatusCode::UNPROCESSABLE_ENTITY,
                ApplyError::Put(error) => unstored(error),
                ApplyError::Stopping(_) => StatusCode::SERVICE_UNAVAILABLE,
            };
            Problem::reply(status, error.code(), &error)
        }
    }
}

/// The response to a request that lacks the token; `None` if the token is right.
fn refusal(context: &HttpContext, headers: &HeaderMap) -> Option<Response> {
    let given = headers.get(header::AUTHORIZATION);
    if given.is_some_and(|header| context.token.is_in(header.as_bytes())) {
        return None;
    }
    let message = "send `Authorization: Bearer` with the token from the state directory";
    let mut response = Problem::reply(StatusCode::UNAUTHORIZED, 1, message);
    let scheme = HeaderValue::from_static("Bearer");
    response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
    Some(response)
}

const fn unstored(error: &PutError) -> StatusCode {
    match error {
        PutError::Conflict { .. } => StatusCode::CONFLICT,
        PutError::Full { .. } => StatusCode::INSUFFICIENT_STORAGE,
        PutError::Store(_) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Chooses a node's scheduler
#[utoipa::path(put, path = "/v1/nodes/{name}/scheduler", security(("token" = [])),
    params(("name" = String, Path, description = "The node's name")),
    request_body(content = String, content_type = "text/plain", description = "`fifo`, \
     `round-robin`, `token`, `sfq`, `dsfq-total`, `dsfq-hybrid` or `unified`"),
    responses(
        (status = 200, description = "The nodes as they are now", body = Vec<NodeStatus>),
        (status = 401, description = "The token is missing or wrong", body = Problem),
        (status = 404, description = "There is no such node", body = Problem),
        (status = 422, description = "There is no such scheduler", body = Problem),
        (status = 507, description = "The store has no space left", body = Problem)
    )
)]
async fn put_scheduler(
    State(context): State<HttpContext>,
    Path(name): Path<String>,
    headers: HeaderMap,
    scheduler: String,
) -> Response {
    if let Some(refusal) = refusal(&context, &headers) {
        return refusal;
    }
    match scheduler.trim().parse() {
        Ok(scheduler) => choose(&context, name, Some(scheduler)).await,
        Err(UnknownDiscipline) => {
            let message = format!("{:?} is {UnknownDiscipline}", scheduler.trim());
            Problem::reply(StatusCode::UNPROCESSABLE_ENTITY, 3, message)
        }
    }
}

/// Takes back the choice of a node's scheduler: it is what the cluster's file says
#[utoipa::path(delete, path = "/v1/nodes/{name}/scheduler", security(("token" = [])),
    params(("name" = String, Path, description = "The node's name")),
    responses(
        (status = 200, description = "The nodes as they are now", body = Vec<NodeStatus>),
        (status = 401, description = "The token is missing or wrong", body = Problem),
        (status = 404, description = "There is no such node", body = Problem),
        (status = 507, description = "The store has no space left", body = Problem)
    )
)]
async fn delete_scheduler(
    State(context): State<HttpContext>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Response {
    match refusal(&context, &headers) {
        Some(refusal) => refusal,
        None => choose(&context, name, None).await,
    }
}

async fn choose(context: &HttpContext, node: String, scheduler: Option<Discipline>) -> Response {
    match context.register.choose(Some(node), scheduler).await {
        Ok(nodes) => json(StatusCode::OK, &nodes),
        Err(error) => {
            let status = match &error {
                ChooseError::NoCluster | ChooseError::Unknown { .. } => StatusCode::NOT_FOUND,
                ChooseError::Put(error) => unstored(error),
                ChooseError::Stopping(_) => StatusCode::SERVICE_UNAVAILABLE,
            };
            Problem::reply(status, 1, error)
        }
    }
}

/// The policies so far, the latest first
#[utoipa::path(get, path = "/v1/policy/history", params(HistoryQuery), responses(
    (status = 200, description = "The policies", body = Vec<PolicyText>),
    (status = 500, description = "The store cannot be read", body = Problem)
))]
async fn history(
    State(context): State<HttpContext>,
    query: Result<Query<HistoryQuery>, QueryRejection>,
) -> Response {
    let query = match query {
        Ok(Query(query)) => query,
        Err(error) => return Problem::reply(error.status(), 1, error.body_text()),
    };
    match context.register.history(query.count.unwrap_or(HISTORY_SHOWN)).await {
        Ok(policies) => json(StatusCode::OK, &policies),
        Err(error) => Problem::reply(StatusCode::INTERNAL_SERVER_ERROR, 1, error),
    }
}

/// Events, as they happen
#[utoipa::path(get, path = "/v1/events", responses(
    (status = 200, description = "Server-sent events; the data of each is a JSON object with \
     `number`, `at_ms` and `event`, the name of what happened", body = String,
     content_type = "text/event-stream")
))]
async fn events(State(context): State<HttpContext>) -> Response {
    let Ok(permit) = context.watchers.try_acquire_owned() else {
        let message = "too many watch already; try again later";
        return Problem::reply(StatusCode::SERVICE_UNAVAILABLE, 1, message);
    };
    let watch = EventStream::new(context.events.subscribe(), permit);
    Sse::new(watch).keep_alive(KeepAlive::default()).into_response()
}

/// Metrics for Prometheus
#[utoipa::path(get, path = "/metrics", responses(
    (status = 200, description = "Metrics in the OpenMetrics text format", body = String,
     content_type = "application/openmetrics-text")
))]
async fn scrape(State(context): State<HttpContext>) -> Response {
    let text = async {
        let survey = context.register.survey().await.map_err(stopping)?;
        let answers = context.answers.clone();
        written(move || answers.registry.text(survey)).await
    };
    match context.answers.metrics.get(text).await {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(response) => response,
    }
}

/// Whether the process lives
#[utoipa::path(get, path = "/healthz", responses((status = 200, description = "It does")))]
pub(crate) async fn healthz() -> &'static str {
    "ok\n"
}

/// Whether everything can be served
#[utoipa::path(get, path = "/readyz", responses(
    (status = 200, description = "Stages, and every part of every volume and pool"),
    (status = 503, description = "It is stopping, or a volume or pool cannot be served: a node is \
     away or does not answer, a part is refused, a memcached is away. A line for each reason",
     body = Problem)
))]
async fn readyz(State(context): State<HttpContext>) -> Response {
    let reasons = async {
        let survey = context.register.survey().await.map_err(stopping)?;
        let cluster = survey.status.cluster.as_ref().zip(context.register.cluster());
        Ok(cluster.map_or(Vec::new(), |(status, file)| unserved(status, file)))
    };
    match context.answers.readiness.get(reasons).await {
        Ok(reasons) => readiness_reply(&reasons),
        Err(response) => response,
    }
}

/// This description
#[utoipa::path(get, path = "/openapi.json", responses(
    (status = 200, description = "OpenAPI", content_type = "application/json")
))]
async fn openapi_json() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], DESCRIPTION).into_response()
}

fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => (status, [(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Writes a long answer, beside the thread that distributes tokens.
async fn written<T: Into<Bytes>, E: ToString + Send + 'static>(
    write: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<Bytes, Response> {
    let write = move || write().map(Into::into).map_err(|error| error.to_string());
    match tokio::task::spawn_blocking(write).await {
        Ok(written) => written.map_err(failure),
        Err(error) => Err(failure(error)),
    }
}

/// The reply where the answer cannot be serialized.
fn failure(error: impl ToString) -> Response {
    Problem::reply(StatusCode::INTERNAL_SERVER_ERROR, 1, error)
}

/// The reply about readiness: `ok`, or the reasons against it, a line each.
pub(crate) fn readiness_reply(reasons: &[String]) -> Response {
    match reasons.is_empty() {
        true => "ok\n".into_response(),
        false => Problem::reply(StatusCode::SERVICE_UNAVAILABLE, 1, reasons.join("\n")),
    }
}

fn stopping(error: Stopping) -> Response {
    Problem::reply(StatusCode::SERVICE_UNAVAILABLE, 1, error)
}

/// Future events, for one watcher.
struct EventStream {
    next: Pin<Box<dyn Future<Output = (Option<SseEvent>, Events)> + Send>>,
    _permit: OwnedSemaphorePermit,
}

type Events = broadcast::Receiver<Arc<TimedEvent>>;

impl EventStream {
    fn new(events: Events, permit: OwnedSemaphorePermit) -> Self {
        Self { next: Box::pin(next_event(events)), _permit: permit }
    }
}

impl Stream for EventStream {
    type Item = Result<SseEvent, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Poll::Ready((event, events)) = self.next.as_mut().poll(cx) else {
            return Poll::Pending;
        };
        self.next = Box::pin(next_event(events));
        Poll::Ready(event.map(Ok))
    }
}

/// The next event, or none after the last. A watcher that fell behind gets the number of lost
/// events.
async fn next_event(mut events: Events) -> (Option<SseEvent>, Events) {
    let event = match events.recv().await {
        Ok(event) => match serde_json::to_string(&*event) {
            Ok(data) => Some(SseEvent::default().id(event.number.to_string()).data(data)),
            Err(error) => Some(SseEvent::default().comment(error.to_string())),
        },
        Err(broadcast::error::RecvError::Lagged(lost)) => {
            Some(SseEvent::default().event("lost").data(lost.to_string()))
        }
        Err(broadcast::error::RecvError::Closed) => None,
    };
    (event, events)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_host_are_its_own() {
        let hosts = Hosts::new(SocketAddr::from(([127, 0, 0, 2], 7171)), &["ops.example".into()]);
        for own in
            ["localhost", "LOCALHOST:7171", "127.0.0.1:9", "[::1]:7171", "[::1]", "127.0.0.2:7171"]
        {
            assert!(hosts.has(own), "{own}");
        }
        assert!(hosts.has("ops.example:443"));
        for foreign in ["", "evil.example", "evil.example:7171", "localhost.evil.example", "::1"] {
            assert!(!hosts.has(foreign), "{foreign}");
        }
        assert!(!hosts.has("localhost:") && !hosts.has("localhost:x") && !hosts.has("127.0.0.3"));
    }
}
