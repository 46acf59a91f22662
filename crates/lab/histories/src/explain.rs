//! How does a person read an operation?

use crate::history::{Answer, Content, Event, Freshness, Key, Nanos, Operation, Request, Seen, WriteId};
use std::fmt::{Display, Formatter, Result};

impl Display for Key {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "k{}", self.0)
    }
}

impl Display for WriteId {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "w{}", self.0)
    }
}

impl Display for Content {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{}", self.write)?;
        if self.base != self.write {
            write!(f, " over {}", self.base)?;
        }
        Ok(())
    }
}

impl Display for Seen {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{} @{}", self.content, self.revision)
    }
}

impl Display for Request {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let condition = |f: &mut Formatter<'_>, expected: &Option<WriteId>| match expected {
            Some(expected) => write!(f, " if {expected}"),
            None => Ok(()),
        };
        match self {
            Self::Create { key, write } => write!(f, "create {key} {write}"),
            Self::Put { key, write, expected } => {
                write!(f, "put {key} {write}")?;
                condition(f, expected)
            }
            Self::Patch { key, write } => write!(f, "patch {key} {write}"),
            Self::Delete { key, expected } => {
                write!(f, "delete {key}")?;
                condition(f, expected)
            }
            Self::Get { key } => write!(f, "get {key}"),
            Self::List(Freshness::Newest) => write!(f, "list"),
            Self::List(Freshness::Any) => write!(f, "list at any revision"),
            Self::List(Freshness::NotOlderThan(revision)) => write!(f, "list not older than {revision}"),
            Self::List(Freshness::Exactly(revision)) => write!(f, "list exactly {revision}"),
        }
    }
}

impl Display for Answer {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Written(seen) => write!(f, "written {seen}"),
            Self::Deleted => write!(f, "deleted"),
            Self::Exists => write!(f, "exists already"),
            Self::Conflict => write!(f, "conflict"),
            Self::Missing => write!(f, "not found"),
            Self::Found(seen) => write!(f, "found {seen}"),
            Self::Listed(listing) => {
                write!(f, "listed @{}:", listing.revision)?;
                for (key, seen) in &listing.objects {
                    write!(f, " {key}={seen}")?;
                }
                Ok(())
            }
        }
    }
}

impl Display for Event {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Added(key, seen) => write!(f, "ADDED {key} {seen}"),
            Self::Modified(key, seen) => write!(f, "MODIFIED {key} {seen}"),
            Self::Deleted(key, seen) => write!(f, "DELETED {key} {seen}"),
            Self::Bookmark(revision) => write!(f, "BOOKMARK @{revision}"),
            Self::InitialEnd(revision) => write!(f, "BOOKMARK after the initial events @{revision}"),
        }
    }
}

impl Display for Operation {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "[{} ", seconds(self.start))?;
        match &self.answer {
            Some((end, answer)) => write!(f, "{}] {}: {answer}", seconds(*end), self.request),
            None => write!(f, "?] {}: no answer", self.request),
        }
    }
}

pub fn seconds(at: Nanos) -> String {
    format!("{:.6}", at as f64 / 1e9)
}
