//! Questions to the views of objects that a node keeps.

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};

use super::{Kind, Message, at_most};
use crate::limits;
use crate::pos::StreamId;

/// What a message says of the data behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataSum {
    /// How many bytes there are.
    pub bytes: u32,
    /// Their CRC32C.
    pub checksum: u32,
}

impl DataSum {
    /// That of `data`, which is shorter than 4 GiB.
    pub fn of(data: &[u8]) -> Self {
        Self { bytes: data.len() as u32, checksum: crc32c::crc32c(data) }
    }

    fn encode(self, out: &mut BytesMut) {
        out.put_u32_le(self.bytes);
        out.put_u32_le(self.checksum);
    }

    fn decode(decoder: &mut Decoder<'_>, data_len: usize, limit: usize) -> Result<Self, DecodeError> {
        let (bytes, checksum) = (decoder.u32("length of data")?, decoder.u32("checksum of data")?);
        at_most("length of data", bytes as usize, limit, "at most what a question or answer may have")?;
        if bytes as usize != data_len {
            let (field, found) = ("length of data", data_len as u64);
            return Err(DecodeError::Invalid { field, found, expected: "as many bytes as the message says" });
        }
        Ok(Self { bytes, checksum })
    }
}

/// Asks a node about the object of a stream. What is asked is the frame's data, which the log knows nothing of
/// (docs/protocol/remote-views.md).
///
/// Body, 24 bytes: `stream u128`, `length u32`, `checksum u32` of the data. Data: the question, at most
/// [`limits::VIEW_QUESTION_MAX_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskView {
    /// The object's stream.
    pub stream: StreamId,
    /// Of the question.
    pub question: DataSum,
}

impl Message for AskView {
    const KIND: Kind = Kind::AskView;

    fn encode_body(&self, out: &mut BytesMut) {
        out.put_u128_le(self.stream.0);
        self.question.encode(out);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let stream = StreamId(decoder.u128("stream")?);
        let question = DataSum::decode(&mut decoder, data_len, limits::VIEW_QUESTION_MAX_BYTES)?;
        decoder.finish()?;
        Ok(Self { stream, question })
    }
}

/// What a view says, in reply to [`AskView`].
///
/// Body, 8 bytes: `length u32`, `checksum u32` of the data. Data: the answer, at most [`limits::VIEW_ANSWER_MAX_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewAnswer {
    /// Of the answer.
    pub answer: DataSum,
}

impl Message for ViewAnswer {
    const KIND: Kind = Kind::ViewAnswer;

    fn encode_body(&self, out: &mut BytesMut) {
        self.answer.encode(out);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let answer = DataSum::decode(&mut decoder, data_len, limits::VIEW_ANSWER_MAX_BYTES)?;
        decoder.finish()?;
        Ok(Self { answer })
    }
}
