//! May a request start now, and what does it hold until it is over?
//!
//! Every request passes here before anything is computed for it: resources, reviews and documents alike. Those with large
//! bodies take more of their class's seats, and nobody's seats are free again before the answer has been sent.

use crate::auth::Attributes;
use crate::auth::flow::{self, Class, Duty, Permit, Width};
use crate::dispatch::RequestBody;
use crate::reply::{Held, Reply};
use crate::request::Request;
use crate::server::Server;
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use pointsman_rules::ApiError;
use std::time::Duration;

/// Upstream's limit on request bodies.
pub const MAX_BODY: usize = 3 << 20;
/// Reviews are questions of a few lines.
pub const MAX_REVIEW: usize = 64 << 10;
/// Upstream's limit on requests other than watches, and on how long a client may take to read the answer.
pub const MAX_REQUEST: Duration = Duration::from_secs(60);
/// Upstream's limit on writes, and on how long a large body may take to arrive.
pub const MAX_WRITE: Duration = Duration::from_secs(34);
/// How long a body of one seat may take to arrive.
const SMALL_BODY_WAIT: Duration = Duration::from_secs(10);

/// A request that may run.
pub struct Admitted {
    pub class: Class,
    permit: Permit,
    /// The place of a watch, which has the seat only until it has started.
    watch: Option<Permit>,
}

/// Waits until there is room for a request.
pub async fn admit(server: &Server, attributes: &Attributes<'_>, width: Width) -> Result<Admitted, ApiError> {
    let class = flow::classify(attributes, width);
    let duty = match flow::duty(attributes) {
        Duty::Watch => Duty::Read,
        duty => duty,
    };
    let permit = server
        .flow
        .acquire(class, duty, &attributes.user.name, width)
        .await?;
    Ok(Admitted {
        class,
        permit,
        watch: None,
    })
}

/// The width of a request by its body. One that does not say how long it is may be as long as is allowed; one that is
/// too long is refused when so much has been read, or its sender would not hear why.
pub fn width<B: RequestBody>(body: &B, limit: usize) -> Width {
    let declared = http_body::Body::size_hint(body).exact();
    let bytes = declared.and_then(|bytes| usize::try_from(bytes).ok());
    Width::of_body(bytes.unwrap_or(limit).min(limit))
}

impl Admitted {
    /// Reads the body; what it turns out not to need is given back.
    pub async fn read<B: RequestBody>(&mut self, body: B, limit: usize) -> Result<Bytes, ApiError> {
        let wait = match width(&body, limit) {
            Width::ONE => SMALL_BODY_WAIT,
            _ => MAX_WRITE,
        };
        let read = tokio::time::timeout(wait, Limited::new(body, limit).collect()).await;
        match read.map_err(|_| timed_out(wait))? {
            Ok(collected) => {
                let bytes = collected.to_bytes();
                self.permit.narrow(Width::of_body(bytes.len()));
                Ok(bytes)
            }
            Err(error) if error.is::<LengthLimitError>() => Err(too_large(limit)),
            Err(error) => Err(ApiError::BadRequest(format!(
                "the request body could not be read: {error}"
            ))),
        }
    }

    /// Takes a place among the user's watches as well; what a watch keeps in mind, its selectors, counts.
    pub async fn watch(&mut self, server: &Server, request: &Request) -> Result<(), ApiError> {
        let width = Width::of_query(request.query.bytes());
        let place = server
            .flow
            .acquire(self.class, Duty::Watch, &request.user.name, width);
        self.watch = Some(place.await?);
        Ok(())
    }

    /// Keeps the request's place until `reply` has been sent.
    pub fn until_sent(self, reply: Reply) -> Reply {
        let held = Held {
            guard: Box::new(self.watch.unwrap_or(self.permit)),
            limit: (!reply.body.is_stream()).then_some(MAX_REQUEST),
        };
        Reply {
            held: Some(held),
            ..reply
        }
    }
}

fn too_large(limit: usize) -> ApiError {
    ApiError::TooLarge(format!(
        "the request body is larger than the limit of {limit} bytes"
    ))
}

/// The error for what took longer than it may.
pub fn timed_out(limit: Duration) -> ApiError {
    ApiError::Timeout {
        message: format!("request did not complete within {} seconds", limit.as_secs_f64()),
        cause: None,
        retry_after_seconds: 1,
    }
}
