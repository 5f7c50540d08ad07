//! Listening, and ending well.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

use super::door::enter;
use super::patient::Patient;
use crate::app::App;
use crate::routes;
use crate::service::{Config, Log, Registry, Source};

/// How often models and engines are looked at.
const LOOK: Duration = Duration::from_millis(250);

/// How long engines may take to end what they are doing.
const CLOSE: Duration = Duration::from_secs(10);

/// A server that listens.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    app: App,
    router: Router,
    exits_on_stall: bool,
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All answers were complete.
    Drained,
    /// Some answers were cut off.
    CutOff,
    /// An engine did nothing any more.
    Stalled,
}

impl Server {
    /// Listens. Nothing is answered before [`Server::run`].
    pub async fn bind(config: &Config, sources: Vec<Source>, log: Log) -> Result<Self, String> {
        let app = App::new(config, sources, log)?;
        let wanted = SocketAddr::new(config.host, config.port);
        let listener = TcpListener::bind(wanted).await.map_err(|e| match e.kind() {
            std::io::ErrorKind::AddrInUse => {
                format!("{wanted} is in use by another program; choose another with --port")
            }
            _ => format!("can't listen at {wanted}: {e}"),
        })?;
        let address =
            listener.local_addr().map_err(|e| format!("can't listen at {wanted}: {e}"))?;
        let router = routes::router(&app);
        Ok(Server { listener, address, app, router, exits_on_stall: config.exit_on_stall })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What its handlers share.
    pub fn app(&self) -> &App {
        &self.app
    }

    /// Loads the first model now, not when somebody asks.
    pub fn preload(&self) {
        let app = self.app.clone();
        tokio::spawn(async move {
            // What goes wrong is in the log, and told to whoever asks.
            let _ = app.lease(None).await;
        });
    }

    /// Answers until `stop`, then lets answers under way end, for a while.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Outcome {
        let Server { listener, app, router, exits_on_stall, .. } = self;
        let limits = app.limits().clone();
        let stalled = Arc::new(Notify::new());
        let looks = tokio::spawn(look(app.clone(), exits_on_stall, stalled.clone()));
        let connections = TaskTracker::new();
        let slots = Arc::new(Semaphore::new(limits.connections.max(1)));
        let mut stop = pin!(stop);
        let mut is_stalled = false;
        loop {
            let next = async {
                let slot = slots.clone().acquire_owned().await;
                (listener.accept().await, slot)
            };
            tokio::select! {
                (accepted, slot) = next => match accepted {
                    Ok((stream, _)) => {
                        let task = connection(app.clone(), router.clone(), stream, slot.ok());
                        connections.spawn(task);
                    }
                    // Too many open files, or a peer that is gone already: others are served.
                    Err(e) => {
                        app.log().note("warn", "can't accept", &[("detail", e.to_string().into())]);
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                },
                () = stalled.notified() => {
                    is_stalled = true;
                    break;
                }
                () = &mut stop => break,
            }
        }
        app.stopping().cancel();
        drop(listener);
        connections.close();
        let drain = Duration::from_secs(if is_stalled { 0 } else { limits.drain_seconds });
        let mut outcome = Outcome::Drained;
        if tokio::time::timeout(drain, connections.wait()).await.is_err() {
            outcome = Outcome::CutOff;
            app.ending().cancel();
            // Long enough for those who read to be told.
            let _ = tokio::time::timeout(Duration::from_secs(2), connections.wait()).await;
        }
        looks.abort();
        if is_stalled {
            // To let go of an engine is to wait for its thread, and that one hangs.
            std::mem::forget(app);
            return Outcome::Stalled;
        }
        app.ending().cancel();
        match closed(app.registry().clone()).await {
            true => outcome,
            false => {
                std::mem::forget(app);
                Outcome::CutOff
            }
        }
    }
}

/// Unloads all models, unless that takes too long: to let go of an engine is to wait for its thread.
async fn closed(registry: Arc<Registry>) -> bool {
    let (sender, done) = tokio::sync::oneshot::channel();
    // A thread of its own: a runtime that ends waits for those that it has.
    let thread = std::thread::Builder::new().name("close".to_string()).spawn(move || {
        registry.close();
        let _ = sender.send(());
    });
    thread.is_ok() && matches!(tokio::time::timeout(CLOSE, done).await, Ok(Ok(())))
}

/// Unloads what nobody uses, and notices engines that do nothing.
async fn look(app: App, exits: bool, stalled: Arc<Notify>) {
    let mut told: Vec<String> = Vec::new();
    loop {
        tokio::time::sleep(LOOK).await;
        let registry = app.registry().clone();
        let _ = tokio::task::spawn_blocking(move || registry.sweep()).await;
        let now = app.stalled();
        for model in now.iter().filter(|model| !told.contains(model)) {
            let what = "an engine does nothing though it has requests; its device may hang";
            app.log().note("error", what, &[("model", model.as_str().into())]);
            if exits {
                stalled.notify_one();
            }
        }
        told = now;
    }
}

async fn connection(
    app: App,
    router: Router,
    stream: TcpStream,
    _slot: Option<OwnedSemaphorePermit>,
) {
    let limits = app.limits();
    let is_local = stream.local_addr().is_ok_and(|at| at.ip().to_canonical().is_loopback());
    // Small frames go out at once; without it they come later, but they come.
    let _ = stream.set_nodelay(true);
    let io = TokioIo::new(Patient::new(stream, limits.write_time()));
    let service = service_fn(|request: hyper::Request<hyper::body::Incoming>| {
        let (app, router) = (app.clone(), router.clone());
        async move {
            let request = request.map(Body::new);
            Ok::<_, Infallible>(enter(&app, router, is_local, request).await)
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(limits.header_seconds.max(1)))
        // The door refuses what is longer than it may be; this is the most that is read to find out.
        .max_buf_size(limits.header_bytes.saturating_mul(4).max(64 << 10))
        .serve_connection(io, service);
    let mut served = pin!(served);
    // How a connection ends is its peer's affair.
    tokio::select! {
        _ = served.as_mut() => {}
        () = app.stopping().cancelled() => {
            served.as_mut().graceful_shutdown();
            let _ = served.await;
        }
    }
}
