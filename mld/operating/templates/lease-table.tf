resource "aws_dynamodb_table" "@resource@" {
  name                        = @name@
  billing_mode                = @billing_mode@
  hash_key                    = "leaseKey"
  read_capacity               = @read_capacity@
  write_capacity              = @write_capacity@
  deletion_protection_enabled = @deletion_protection@

  attribute {
    name = "leaseKey"
    type = "S"
  }

  attribute {
    name = "leaseOwner"
    type = "S"
  }

  global_secondary_index {
    name            = "LeaseOwnerToLeaseKeyIndex"
    hash_key        = "leaseOwner"
    range_key       = "leaseKey"
    projection_type = "KEYS_ONLY"
    read_capacity   = @read_capacity@
    write_capacity  = @write_capacity@
  }
@?recovery@
@?recovery@  point_in_time_recovery {
@?recovery@    enabled = true
@?recovery@  }
@?tags@
@?tags@  tags = {
    @tags@
@?tags@  }
}
