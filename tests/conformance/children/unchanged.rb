# A record processor on Amazon's library for Ruby, aws-kclrb; does what unchanged.py does.
require 'json'
require 'aws/kclrb'

class Processor < Aws::KCLrb::V2::RecordProcessorBase
  def init_processor(initialize_input); end

  def process_records(process_records_input)
    process_records_input.records.each do |record|
      keys = %w[data streamName schemaName].to_h { |name| [name, record[name]] }
      $stderr.puts(JSON.generate({ call: 'record', kind: 'ruby' }.merge(keys)))
    end
    settle(process_records_input.checkpointer)
  end

  def lease_lost(lease_lost_input); end

  def shard_ended(shard_ended_input)
    settle(shard_ended_input.checkpointer)
  end

  def shutdown_requested(shutdown_requested_input)
    settle(shutdown_requested_input.checkpointer)
  end

  private

  def settle(checkpointer)
    checkpointer.checkpoint
  rescue Aws::KCLrb::CheckpointError => e
    checkpointer.checkpoint if e.value == 'ThrottlingException'
  end
end

Aws::KCLrb::KCLProcess.new(Processor.new).run
