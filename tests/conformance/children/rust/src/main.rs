// A record processor on the crate kcl; does what unchanged.py does. Its records have no names of streams and schemas, and
// it panics at the end of its input, as every program on this crate does.
use kcl::checkpointer::Checkpointer;
use kcl::reader::StdinReader;
use kcl::writer::StdoutWriter;
use kcl::{run, Processor, Record};
use serde_json::json;

type Positions<'a> = Checkpointer<'a, StdoutWriter, StdinReader>;

struct Unchanged;

fn settle(checkpointer: &mut Positions) {
    if let Err(error) = checkpointer.checkpoint(None, None) {
        if error.is_retryable() {
            let _ = checkpointer.checkpoint(None, None);
        }
    }
}

impl Processor<StdoutWriter, StdinReader> for Unchanged {
    fn initialize(&mut self, _shard_id: &str) {}

    fn process_records(&mut self, records: &[Record], checkpointer: &mut Positions) {
        for record in records {
            let data = &json!(record)["data"];
            eprintln!("{}", json!({"call": "record", "kind": "rust", "data": data, "streamName": null, "schemaName": null}));
        }
        settle(checkpointer);
    }

    fn lease_lost(&mut self) {}

    fn shard_ended(&mut self, checkpointer: &mut Positions) {
        settle(checkpointer);
    }

    fn shutdown_requested(&mut self, checkpointer: &mut Positions) {
        settle(checkpointer);
    }
}

fn main() {
    std::panic::set_hook(Box::new(|_| {})); // the test wants to hear of records only
    run(&mut Unchanged);
}
