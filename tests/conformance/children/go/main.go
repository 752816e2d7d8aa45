// A record processor in the manner of a Go library for KCL 1.x: it answers a batch first and asks for the checkpoint
// afterwards, without waiting for the reply; at shutdown it asks for one without a position, says at once that it is
// done, with the status "shutdown" whatever the action was, and ends.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
)

type record struct {
	SequenceNumber    string `json:"sequenceNumber"`
	SubSequenceNumber int    `json:"subSequenceNumber"`
	Data              string `json:"data"`
}

type message struct {
	Action  string   `json:"action"`
	Records []record `json:"records"`
	Error   *string  `json:"error"`
}

type checkpoint struct {
	Action            string  `json:"action"`
	SequenceNumber    *string `json:"sequenceNumber,omitempty"`
	SubSequenceNumber *int    `json:"subSequenceNumber,omitempty"`
}

type status struct {
	Action      string `json:"action"`
	ResponseFor string `json:"responseFor"`
}

func send(action any) {
	line, err := json.Marshal(action)
	if err != nil {
		panic(err)
	}
	fmt.Printf("\n%s\n", line)
}

func main() {
	input := bufio.NewReader(os.Stdin)
	for {
		line, err := input.ReadBytes('\n')
		if err != nil {
			return
		}
		var got message
		if err := json.Unmarshal(line, &got); err != nil {
			fmt.Fprintf(os.Stderr, "cannot read a line: %v\n", err)
			continue
		}
		switch got.Action {
		case "checkpoint":
			if got.Error != nil {
				fmt.Fprintf(os.Stderr, "checkpoint: %s\n", *got.Error)
			}
		case "processRecords":
			for _, one := range got.Records {
				said, _ := json.Marshal(map[string]string{"call": "record", "data": one.Data})
				fmt.Fprintf(os.Stderr, "%s\n", said)
			}
			send(status{"status", got.Action})
			if count := len(got.Records); count > 0 {
				last := got.Records[count-1]
				send(checkpoint{"checkpoint", &last.SequenceNumber, &last.SubSequenceNumber})
			}
		case "shutdown", "shutdownRequested":
			send(checkpoint{Action: "checkpoint"})
			send(status{"status", "shutdown"})
			return
		default:
			send(status{"status", got.Action})
		}
	}
}
