#!/bin/sh
# Install SLURM and MUNGE on Debian or Ubuntu, for the tests in tests/slurm. They start their own daemons.
#
#   scripts/install_slurm.sh [--or-skip]
#
# --or-skip: succeed without them, and install them only where CI is set. The tests skip then.
set -u
if command -v slurmctld slurmd sbatch munged >/dev/null 2>&1; then
    exit 0
fi
reason="make slurm installs it, as root"
if [ "${1:-}" = --or-skip ] && [ -z "${CI:-}" ]; then
    :
elif [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    # Start no service: the tests start their own daemons.
    policy=/usr/sbin/policy-rc.d
    made=
    [ -e "$policy" ] || { printf '#!/bin/sh\nexit 101\n' > "$policy" && chmod 755 "$policy" && made=1; }
    if apt-get install -y -qq --no-install-recommends slurm-wlm munge >/dev/null 2>&1 ||
        { apt-get update -qq >/dev/null 2>&1 &&
            apt-get install -y -qq --no-install-recommends slurm-wlm munge >/dev/null 2>&1; }; then
        reason=
    else
        reason="apt-get cannot install slurm-wlm and munge"
    fi
    [ -z "$made" ] || rm -f "$policy"
fi
[ -z "$reason" ] && exit 0
echo "   SLURM is not installed ($reason): the tests that need it skip"
[ "${1:-}" = --or-skip ]
