import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { fireEvent, render, screen, waitFor } from '@testing-library/react-native';

import App from './FirstExample';
import { ROOT } from './help';

const LONG = { timeout: 100_000 };

it('the first example of the page is this one', () => {
  const page = readFileSync(join(ROOT, 'docs/react-native.md'), 'utf8');
  const [, code] = /```tsx\n([\s\S]*?)```/.exec(page)!;
  expect(code).toBe(readFileSync(join(__dirname, 'FirstExample.tsx'), 'utf8'));
});

it('the first example answers', async () => {
  await render(<App />);
  const input = await screen.findByPlaceholderText('Ask something', {}, LONG);
  await fireEvent.changeText(input, 'What is 4 + 7?');
  await fireEvent.press(screen.getByText('Send'));
  await waitFor(() => expect(screen.getByTestId('answer')).toHaveTextContent(/11/), LONG);
  await screen.findByText('Send', {}, LONG);
});
