//! A plot as SVG: ratios to 1, each as a dot with a line from the least to the greatest value.

use super::figures::Spread;

/// The width of the picture, and the part of it that the labels take, in pixels.
const WIDTH: f64 = 940.0;
const LABELS: f64 = 450.0;
/// The height of a row.
const ROW: f64 = 26.0;
/// The series with their colours. All colours can be read on a light and on a dark page.
const SERIES: [(&str, &str); 3] = [
    ("built-in", "#bc4c00"),
    ("ours", "#2f81f7"),
    ("ours (pods)", "#2da44e"),
];
const GREY: &str = "#7d8590";

/// A row: its label, and the ratio of each series.
pub(crate) type Row = (String, [Option<Spread>; 3]);

pub(crate) fn of(title: &str, rows: &[Row]) -> String {
    let ratios = || rows.iter().flat_map(|(_, ratios)| ratios.iter().flatten());
    let least = ratios().map(|it| it.least).fold(0.9, f64::min);
    let most = ratios().map(|it| it.most).fold(1.1, f64::max);
    let x = |ratio: f64| LABELS + (ratio - least) / (most - least) * (WIDTH - LABELS - 40.0);
    let text = |x: f64, y: f64, colour: &str, text: &str| {
        format!("<text x=\"{x:.0}\" y=\"{y:.0}\" fill=\"{colour}\">{text}</text>\n")
    };
    let line = |colour: &str, [x1, x2]: [f64; 2], [y1, y2]: [f64; 2]| {
        format!("<path stroke=\"{colour}\" d=\"M{x1:.1},{y1:.1} L{x2:.1},{y2:.1}\"/>\n")
    };
    let height = (rows.len() as f64 + 3.0) * ROW;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n"
    );
    svg += &text(10.0, 18.0, GREY, title);
    for ((name, colour), from) in SERIES.iter().zip([0.0, 150.0, 280.0]) {
        svg += &text(LABELS + from, 18.0, colour, &format!("● {name} ÷ disabled"));
    }
    for ratio in [least, 1.0, most] {
        svg += &line(GREY, [x(ratio); 2], [ROW * 1.5, height - ROW]);
        svg += &text(x(ratio) - 12.0, height - 8.0, GREY, &format!("{ratio:.2}"));
    }
    for ((label, ratios), row) in rows.iter().zip(1_u32..) {
        let y = ROW * (f64::from(row) + 1.0);
        svg += &text(10.0, y + 4.0, GREY, label);
        for ((ratio, (_, colour)), y) in ratios.iter().zip(SERIES).zip([y - 6.0, y, y + 6.0]) {
            let Some(ratio) = ratio else { continue };
            svg += &line(colour, [x(ratio.least), x(ratio.most)], [y; 2]);
            let dot = x(ratio.median);
            svg += &format!("<circle cx=\"{dot:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>\n");
        }
    }
    svg + "</svg>\n"
}
