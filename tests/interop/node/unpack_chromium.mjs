// Unpacks the Chromium of the package into the directory named on the command line. Prints one JSON object: the paths of
// the browser and of the folder with its fonts. The package unpacks into the system's temporary directory.
import { join } from "node:path";

process.env.TMPDIR = process.argv[2];
const { default: chromium } = await import("@sparticuz/chromium");
console.log(JSON.stringify({ chromium: await chromium.executablePath(), fonts: join(process.argv[2], "fonts") }));
