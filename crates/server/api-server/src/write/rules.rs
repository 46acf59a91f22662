//! Which rules does an object pass on its way into the store?
//!
//! The order is upstream's: defaulting, admission that changes, preparation, validation, admission that
//! refuses.

use crate::request::Request;
use crate::server::Server;
use crate::write::{certificates, metadata};
use jiff::{SignedDuration, Timestamp};
use pointsman_rules::admission::{external_ips, service_account};
use pointsman_rules::status::Subject;
use pointsman_rules::strategy::Part;
use pointsman_rules::value::{set, str_at};
use pointsman_rules::{ApiError, FieldErrors, Kind, kinds, meta, schema};
use serde_json::Value;

/// Fills in what the schema of a kind says, where nothing else does.
fn by_schema(kind: &Kind, object: &mut Value) {
    if kind.strategy.by_schema() {
        schema::declared::fill_in(object, schema::of(kind));
    }
}

fn missing(kind: &Kind, object: &Value, errors: &mut FieldErrors) {
    if kind.strategy.by_schema() {
        schema::declared::missing(object, schema::of(kind), errors);
    }
}

impl Server {
    /// Takes a decoded, placed object through the rules for creation.
    pub fn admit_create(&self, request: &Request, object: &mut Value) -> Result<Vec<String>, ApiError> {
        let kind = request.target.kind;
        let strategy = kind.strategy;
        let context = self.context(request.now);
        if kind.defined.is_some_and(|defined| defined.get().terminating) {
            let why = "create not allowed while custom resource definition is terminating";
            return Err(ApiError::MethodNotAllowed(why.into()));
        }
        by_schema(kind, object);
        strategy.default(object, &context);
        self.admit_into_namespace(kind, object)?;
        self.admit_priority(kind, object)?;
        certificates::requested_by(kind, object, &request.user);
        strategy.admit(object, self.settings.tolerations());
        self.admit_account(kind, object)?;
        metadata::prepare_create(object, self.new_uid(), strategy.first_generation(), request.now);
        strategy.prepare_create(object, &context);
        let mut errors = meta::validate_meta(object, kind, strategy.name_rule(), "metadata");
        missing(kind, object, &mut errors);
        errors.extend(strategy.validate_create(object, &context));
        if !errors.is_empty() {
            return Err(ApiError::invalid(
                kind,
                str_at(object, &["metadata", "name"]),
                errors,
            ));
        }
        self.may_write(request, None, Some(object))?;
        self.admit_certificate(request, None, object)?;
        self.admit_external_ips(kind, object, None)?;
        let mut warnings = strategy.warnings(object);
        warnings.extend(kind.acted_on.warning(kind.kind, |program| self.leads(program)));
        Ok(warnings)
    }

    /// Takes a changed object through the rules for updates.
    pub fn admit_update(
        &self,
        request: &Request,
        new: &mut Value,
        old: &Value,
        revision: &str,
        part: Part,
    ) -> Result<Vec<String>, ApiError> {
        let kind = request.target.kind;
        let strategy = kind.strategy;
        let context = self.context(request.now);
        metadata::prepare_update(new, old, kind, revision)?;
        by_schema(kind, new);
        strategy.default(new, &context);
        strategy.prepare_update(new, old, part, &context);
        certificates::keep(request, new, old);
        if strategy.bumps_generation(new, old) {
            metadata::bump_generation(new);
        }
        let mut errors = meta::validate_meta(new, kind, strategy.name_rule(), "metadata");
        errors.extend(meta::validate_meta_update(new, old));
        missing(kind, new, &mut errors);
        errors.extend(strategy.validate_update(new, old, part, &context));
        if !errors.is_empty() {
            return Err(ApiError::invalid(
                kind,
                str_at(old, &["metadata", "name"]),
                errors,
            ));
        }
        self.may_write(request, Some(old), Some(new))?;
        self.admit_certificate(request, Some(old), new)?;
        self.admit_external_ips(kind, new, Some(old))?;
        Ok(strategy.warnings(new))
    }

    /// Whether a program that elects its leader by a Lease of its name has one, so that it can be taken to run.
    pub fn leads(&self, program: &str) -> bool {
        let Ok(lease) = self.find(&kinds::LEASE, "kube-system", program) else {
            return false;
        };
        let lease = lease.value();
        let renewed: Option<Timestamp> = str_at(&lease, &["spec", "renewTime"]).parse().ok();
        let seconds = lease["spec"]["leaseDurationSeconds"].as_i64().unwrap_or(0);
        let end = renewed.and_then(|at| at.checked_add(SignedDuration::from_secs(seconds)).ok());
        !str_at(&lease, &["spec", "holderIdentity"]).is_empty()
            && end.is_some_and(|end| end > Timestamp::now())
    }

    /// Gives a pod the number that its class stands for, or the class that all pods have.
    fn admit_priority(&self, kind: &Kind, pod: &mut Value) -> Result<(), ApiError> {
        if kind != &kinds::POD {
            return Ok(());
        }
        let classes = self.cache.of(&kinds::declared::PRIORITY_CLASS);
        let name = str_at(pod, &["spec", "priorityClassName"]).to_owned();
        let class = if name.is_empty() {
            let all = classes.list("", None, self.cache.applied()).objects;
            let mut all = all.iter().map(|class| class.value());
            all.find(|class| class["globalDefault"] == true)
        } else {
            let found = classes.get(&name).ok_or_else(|| ApiError::Forbidden {
                subject: Subject::new(kind, str_at(pod, &["metadata", "name"])),
                why: format!("no PriorityClass with name {name} was found"),
                cause: None,
            })?;
            Some(found.value())
        };
        let Some(class) = class else { return Ok(()) };
        for (field, value) in [
            ("priorityClassName", &class["metadata"]["name"]),
            ("priority", &class["value"]),
            ("preemptionPolicy", &class["preemptionPolicy"]),
        ] {
            if !value.is_null() {
                set(pod, &["spec", field], value.clone());
            }
        }
        Ok(())
    }

    /// Gives a new pod its service account and that account's token.
    fn admit_account(&self, kind: &'static Kind, pod: &mut Value) -> Result<(), ApiError> {
        if kind != &kinds::POD {
            return Ok(());
        }
        let refused = |pod: &Value, why: String| ApiError::Forbidden {
            subject: Subject::new(kind, str_at(pod, &["metadata", "name"])),
            why,
            cause: None,
        };
        let name = service_account::name_account(pod).map_err(|why| refused(pod, why.into()))?;
        let Some(name) = name else { return Ok(()) };
        let namespace = str_at(pod, &["metadata", "namespace"]);
        let account = self.find(&kinds::SERVICE_ACCOUNT, namespace, &name);
        let account = account.map_err(|error| {
            let why = format!("error looking up service account {namespace}/{name}: {error}");
            refused(pod, why)
        })?;
        service_account::equip(pod, &account.value(), || {
            metadata::generate_name(service_account::VOLUME_PREFIX, |below| self.random_below(below))
        });
        Ok(())
    }

    /// Refuses new external addresses of Services, if that is asked for.
    fn admit_external_ips(&self, kind: &Kind, new: &Value, old: Option<&Value>) -> Result<(), ApiError> {
        if kind != &kinds::SERVICE || !self.plugins.deny_service_external_ips {
            return Ok(());
        }
        external_ips::deny_new(new, old).map_err(|why| ApiError::Forbidden {
            subject: Subject::new(kind, str_at(new, &["metadata", "name"])),
            why,
            cause: None,
        })
    }

    /// Objects can only be created in namespaces that exist and stay.
    fn admit_into_namespace(&self, kind: &'static Kind, object: &Value) -> Result<(), ApiError> {
        if !kind.namespaced() {
            return Ok(());
        }
        let namespace = str_at(object, &["metadata", "namespace"]);
        let Some(found) = self.cache.of(&kinds::NAMESPACE).get(namespace) else {
            return Err(ApiError::NotFound(Subject::new(&kinds::NAMESPACE, namespace)));
        };
        let terminating = found.field("status.phase") == "Terminating" || found.is_being_deleted();
        if !terminating {
            return Ok(());
        }
        let why =
            format!("unable to create new content in namespace {namespace} because it is being terminated");
        Err(ApiError::Forbidden {
            subject: Subject::new(kind, str_at(object, &["metadata", "name"])),
            why,
            cause: Some((
                "NamespaceTerminating".into(),
                format!("namespace {namespace} is being terminated"),
                "metadata.namespace".into(),
            )),
        })
    }
}
