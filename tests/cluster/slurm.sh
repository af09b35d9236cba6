#!/usr/bin/env bash
# A SLURM cluster on this machine: one controller and two nodes of four CPUs, all on 127.0.0.1, in one folder.
# Debian: apt install slurm-wlm munge. Nothing outside the folder is read or written, and no service must run before.
#
#   slurm.sh start FOLDER     then: export SLURM_CONF=FOLDER/slurm.conf
#   slurm.sh stop FOLDER
set -euo pipefail
action=$1 folder=$(realpath -m "$2")
export PATH=$PATH:/usr/sbin SLURM_CONF=$folder/slurm.conf

stop() {
    scancel --user="$(id -un)" 2>/dev/null || true
    for _ in $(seq 60); do [ -n "$(squeue --noheader 2>/dev/null)" ] || break; sleep 0.5; done
    for name in slurmd-one slurmd-two slurmctld munged; do
        [ -s "$folder/$name.pid" ] || continue
        process=$(cat "$folder/$name.pid")
        kill "$process" 2>/dev/null || true
        for _ in $(seq 50); do grep -qs "^State:[[:space:]]*[^Z]" "/proc/$process/status" || break; sleep 0.2; done
    done
}

port() { # a free one
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

configure() {
    cat > "$SLURM_CONF" <<CONF
ClusterName=osiris
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=$(port)
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket,cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
JobRequeue=1
ReturnToService=2
MinJobAge=300
KillWait=20
SchedulerParameters=sched_interval=1
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool-%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
MpiDefault=none
NodeName=one NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=$(port) CPUs=4
NodeName=two NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=$(port) CPUs=4
PartitionName=main Nodes=one,two Default=YES MaxTime=INFINITE State=UP
CONF
}

start() {
    for program in munged slurmctld slurmd sbatch squeue; do
        command -v $program > /dev/null || { echo "$program is not installed (Debian: apt install slurm-wlm munge)"; exit 1; }
    done
    mkdir -p "$folder/state" && chmod 700 "$folder"
    configure
    (umask 077 && head -c 1024 /dev/urandom > "$folder/munge.key")
    munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" \
        --log-file="$folder/munged.log" --seed-file="$folder/munge.seed"
    slurmctld
    for node in one two; do slurmd -N $node; done
    for _ in $(seq 60); do
        [ "$(sinfo --noheader --Node --states=idle 2>/dev/null | wc -l)" = 2 ] && exit 0
        sleep 0.5
    done
    stop
    echo "the nodes did not become ready: $(tail -n 3 "$folder"/slurm*.log | tr '\n' ' ')"
    exit 1
}

$action
