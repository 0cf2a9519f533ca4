// Runs the checks of a script one by one and prints what came of each, a JSON object on a line.
const checks = [];

function check(name, run) {
  checks.push([name, run]);
}

function assert(ok, detail = '') {
  if (!ok) throw new Error(`not so: ${typeof detail === 'string' ? detail : JSON.stringify(detail)}`);
}

// The error that a promise must end with; its message or code contains `text`.
async function refused(promise, text) {
  let error;
  try {
    await promise;
  } catch (found) {
    error = found;
  }
  assert(error, `nothing was raised, ${text} expected`);
  assert(`${error.code} ${error.message}`.includes(String(text)), `${error.code} ${error.message}`);
  return error;
}

async function main() {
  for (const [name, run] of checks) {
    let ok = true;
    let detail = '';
    try {
      await run();
    } catch (error) {
      ok = false;
      detail = `${error.name}: ${error.message}`.slice(0, 500);
      console.error(error);
    }
    console.log(JSON.stringify({name, ok, detail}));
  }
  process.exit(0); // libraries keep connections open
}

module.exports = {check, assert, refused, main};
