// Azurite, a server of Azure's protocol, over a folder, on a free port of the loopback interface. Argument: the folder.
// The account is in STORE_ACCOUNT, its key in STORE_KEY. Prints the port; ends with its input.
const { spawn } = require("child_process");
const net = require("net");
const path = require("path");

const program = path.join(require.resolve("azurite/package.json"), "../dist/src/blob/main.js");
const env = { PATH: process.env.PATH, AZURITE_ACCOUNTS: `${process.env.STORE_ACCOUNT}:${process.env.STORE_KEY}` };
const probe = net.createServer().listen(0, "127.0.0.1", () => {
  const { port } = probe.address();
  probe.close(() => {
    const flags = ["--blobPort", port, "--location", process.argv[2], "--disableTelemetry", "--skipApiVersionCheck"];
    const azurite = spawn(process.execPath, [program, ...flags, "--loose"], { env, stdio: ["ignore", "pipe", "inherit"] });
    process.stdin.resume().on("end", () => azurite.kill());
    azurite.on("exit", (code) => process.exit(code));
    let started = false;
    azurite.stdout.on("data", (text) => {
      if (!started && `${text}`.includes("successfully listens")) {
        started = true;
        console.log(port);
      }
    });
  });
});
