# A record processor in Perl, core modules only: checkpoints after every batch and at the end.
use strict;
use warnings;
use JSON::PP;

$| = 1;
my $json = JSON::PP->new->ascii->canonical;

sub receive { my $line = <STDIN>; return defined $line ? $json->decode($line) : undef; }
sub send_message { print $json->encode( $_[0] ), "\n"; }

sub checkpoint {
    for my $attempt ( 1 .. 5 ) {
        send_message( { action => "checkpoint", sequenceNumber => undef, subSequenceNumber => undef } );
        my $reply = receive() or exit 1;
        last unless ( $reply->{error} // "" ) eq "ThrottlingException";
    }
}

while ( my $message = receive() ) {
    my $action = $message->{action};
    checkpoint() unless $action eq "initialize" or $action eq "leaseLost";
    send_message( { action => "status", responseFor => $action } );
}
