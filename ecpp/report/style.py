"""The look of the page: one column, light and dark, no script, nothing from outside."""

CSS = """
:root{color-scheme:light dark;--paper:#fbfbf9;--card:#fff;--ink:#1c2127;--soft:#5c6670;
--rule:#e2e4e0;--tint:#f3f4f0;--accent:#2563c9;
--c0:#2563c9;--c1:#c8442f;--c2:#14865a;--c3:#b26a00;--c4:#7a4cc2;--c5:#0b8496;--c6:#bd4682;
--c7:#657083}
@media(prefers-color-scheme:dark){:root{--paper:#14171a;--card:#1b1f23;--ink:#e7e9ea;
--soft:#9aa4ad;--rule:#31373d;--tint:#22272c;--accent:#79a8f5;
--c0:#79a8f5;--c1:#f08a76;--c2:#5cc79a;--c3:#e5aa4a;--c4:#b798f0;--c5:#5fc3d2;--c6:#ee8dbb;
--c7:#a5b0bc}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1180px;margin:0 auto;padding:40px 24px 56px}
h1{font-size:2rem;line-height:1.2;letter-spacing:-.015em;margin:0 0 8px;overflow-wrap:anywhere}
header{margin-bottom:20px}
h2{font-size:1.25rem;margin:48px 0 12px}
h3{font-size:1rem;margin:0 0 6px}
p{margin:8px 0;max-width:75ch}
.intro{font-size:1.08rem;color:var(--soft);white-space:pre-line}
.card{background:var(--card);border:1px solid var(--rule);border-radius:10px}
.wide{overflow-x:auto;-webkit-overflow-scrolling:touch}
table{border-collapse:separate;border-spacing:0;width:100%;font-size:.875rem;line-height:1.4;
font-variant-numeric:tabular-nums}
th,td{padding:9px 10px;text-align:right;border-bottom:1px solid var(--rule);vertical-align:top}
tbody td{white-space:nowrap}
tbody tr:last-child>*{border-bottom:0}
thead th{color:var(--soft);font-weight:500;vertical-align:bottom}
th:first-child{text-align:left;position:sticky;left:0;background:var(--card);min-width:11rem;
max-width:17rem;overflow-wrap:anywhere;padding-left:16px}
th small,td small{display:block;font-weight:400;color:var(--soft);font-size:.78rem}
td.top1{min-width:7rem;font-weight:650}
td.none{color:var(--soft);font-weight:400}
tr.mean>*,tr.mean>th:first-child{background:var(--tint)}
tr.floor td.top1{min-width:7rem;font-weight:400}
table.text td,table.text thead th{text-align:left;white-space:normal;overflow-wrap:anywhere}
table.text td{min-width:7rem}
table.text td.tight{min-width:0;white-space:nowrap}
table.text th:first-child{font-weight:500}
.notes{color:var(--soft);font-size:.9rem;padding-left:1.1em;max-width:95ch}
.notes li{margin:4px 0}
.notes b{color:var(--ink);font-weight:600}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:18px}
figure{margin:0;padding:16px 18px}
figcaption{color:var(--soft);font-size:.85rem;max-width:95ch;margin-top:6px}
.charts svg{display:block;width:100%;height:auto}
svg text{fill:var(--soft);font-size:11.5px}
svg .name{fill:var(--ink)}
svg .key{fill:var(--ink);font-size:12px}
svg .line{fill:none;stroke-width:2;stroke-linejoin:round}
svg .many{stroke-width:1.2}
svg .grid{stroke:var(--rule);fill:none}
svg .axis{stroke:var(--soft);fill:none}
svg .cell{fill:var(--accent)}
svg .heat{fill:var(--ink);font-size:11px}
svg .strong{fill:var(--card)}
.pictures{display:grid;gap:18px}
.pictures img{display:block;max-width:100%;height:auto;border-radius:6px;background:#fff}
details{margin:10px 0;padding:0 18px}
summary{cursor:pointer;padding:12px 0;font-weight:600;overflow-wrap:anywhere}
summary span{font-weight:400;color:var(--soft);margin-left:.5em}
details h3{margin:14px 0 4px;color:var(--soft);font-weight:500;font-size:.875rem}
pre{background:var(--tint);border-radius:6px;padding:10px 12px;margin:0 0 8px;font-size:.82rem;
white-space:pre-wrap;overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(250px,1fr));gap:0 24px;
margin:0 0 12px;font-size:.85rem}
dl div{display:flex;justify-content:space-between;gap:14px;border-bottom:1px solid var(--rule);
padding:4px 0}
dt{color:var(--soft)}
dd{margin:0;text-align:right;overflow-wrap:anywhere}
footer{margin-top:48px;color:var(--soft);font-size:.82rem;overflow-wrap:anywhere}
@media(max-width:600px){main{padding:24px 14px 40px}h1{font-size:1.6rem}
svg text,svg .key{font-size:13px}th small{display:none}h2{margin-top:36px}
figure{padding:12px}th,td{padding:8px 9px}th:first-child{min-width:7.5rem;max-width:9rem;
padding-left:12px}}
@media print{body{background:#fff}.card{break-inside:avoid}}
"""
