//! How are values, verdicts and names written and read?

use super::expr::Verdict;
use super::name::Name;
use super::value::Value;
use super::wire;
use crate::netlink::{Attribute, Malformed, Writer};

pub(super) fn encode_value(writer: &mut Writer, kind: u16, value: &Value) {
    writer.nest(kind, |data| {
        data.bytes_attribute(wire::data::VALUE, value.as_bytes())
    });
}

pub(super) fn decode_value(attribute: &Attribute<'_>) -> Result<Value, Malformed> {
    for part in attribute.nested() {
        let part = part?;
        if part.kind == wire::data::VALUE {
            return Value::try_new(part.value).map_err(|_| Malformed("a value is longer than 64 bytes"));
        }
    }
    Err(Malformed("a value is missing"))
}

pub(super) fn encode_verdict(writer: &mut Writer, kind: u16, verdict: &Verdict) {
    let (code, chain): (i32, Option<&Name>) = match verdict {
        Verdict::Drop => (0, None),
        Verdict::Accept => (1, None),
        Verdict::Continue => (-1, None),
        Verdict::Jump(chain) => (-3, Some(chain)),
        Verdict::Goto(chain) => (-4, Some(chain)),
        Verdict::Return => (-5, None),
    };
    writer.nest(kind, |data| {
        data.nest(wire::data::VERDICT, |verdict| {
            verdict.u32_be(wire::data::VERDICT_CODE, code as u32);
            if let Some(chain) = chain {
                verdict.text(wire::data::VERDICT_CHAIN, chain.as_str());
            }
        });
    });
}

/// `None` for verdicts that no rule of ours gives (such as queueing).
pub(super) fn decode_verdict(attribute: &Attribute<'_>) -> Result<Option<Verdict>, Malformed> {
    let mut code = None;
    let mut chain = None;
    for part in attribute.nested() {
        let part = part?;
        if part.kind != wire::data::VERDICT {
            continue;
        }
        for field in part.nested() {
            let field = field?;
            match field.kind {
                wire::data::VERDICT_CODE => code = Some(field.u32_be()? as i32),
                wire::data::VERDICT_CHAIN => chain = Some(decode_name(&field)?),
                _ => {}
            }
        }
    }
    Ok(
        match (code.ok_or(Malformed("a verdict without a code"))?, chain) {
            (0, _) => Some(Verdict::Drop),
            (1, _) => Some(Verdict::Accept),
            (-1, _) => Some(Verdict::Continue),
            (-3, Some(chain)) => Some(Verdict::Jump(chain)),
            (-4, Some(chain)) => Some(Verdict::Goto(chain)),
            (-5, _) => Some(Verdict::Return),
            _ => None,
        },
    )
}

pub(super) fn decode_name(attribute: &Attribute<'_>) -> Result<Name, Malformed> {
    Name::try_new(attribute.text()?).map_err(|_| Malformed("a name is empty or too long"))
}
