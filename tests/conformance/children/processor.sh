# A record processor in the shell, without a first line that names it: finds the action by its place in the line.
while IFS= read -r line; do
  action=${line#'{"action":"'}
  action=${action%%'"'*}
  case $action in
    initialize | leaseLost) ;;
    *)
      reply='ThrottlingException'
      while case $reply in *ThrottlingException*) ;; *) false ;; esac; do
        printf '{"action":"checkpoint","sequenceNumber":null}\n'
        IFS= read -r reply || exit 1
      done
      ;;
  esac
  printf '{"action":"status","responseFor":"%s"}\n' "$action"
done
exit 0
